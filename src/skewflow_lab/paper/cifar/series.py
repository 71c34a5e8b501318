"""The failure of a Taylor series in the first steps of a deep network without shifted batch norms.

There gradients grow from layer to layer, and with them the norm of lr Omega. A network that trains
well keeps that norm below 1, where a series of 20 terms is exact to rounding (Sec. 9.1.2).
"""

import math
from dataclasses import replace
from itertools import islice
from typing import Any

from .training import CifarConfig, Setting, load, make_lane, weight_error

BROKEN = 1e-2
"""Largest normalised error of a weight that counts as being on the manifold."""


def series_methods(config: CifarConfig) -> list[str]:
    """The exact method and the series that are compared with it."""
    return [m for m in config.methods if m == "exact" or m.startswith("taylor")]


def first_steps(config: CifarConfig) -> dict[str, Any]:
    """For each method and scale the step at which it left the manifold, if any, and the norm."""
    assert config.series_depth is not None
    deep = replace(config, depth=config.series_depth, shift=0.0)
    train, _ = load(deep, held_out=False)
    batches = [*islice(train.shuffled(config.batch, config.seeds[0], 0), config.series_steps)]
    rows = []
    for scale in config.scales:
        for method in series_methods(config):
            lane = make_lane(deep, Setting(method, scale), config.seeds[0])  # type: ignore[arg-type]
            broke_at, norm = None, None
            for number, (x, y) in enumerate(batches, 1):
                lane.step(x, y)
                if number == 1 and method != "exact":
                    norm = lane.optimizers[0].largest_norm()  # type: ignore[attr-defined]
                error = weight_error(lane.model)
                if error is None or error > BROKEN:
                    broke_at = number
                    break
            rows.append(
                {
                    "method": method,
                    "scale": scale,
                    "norm": norm if norm is None or math.isfinite(norm) else None,
                    "broke_at": broke_at,
                    "error": error,
                }
            )
    return {"depth": config.series_depth, "steps": len(batches), "rows": rows}
