"""`skewflow bench which-end`: finds where blocks, exact steps or factored steps are fastest.

With exact gradients a step in blocks of s rows makes the fraction (s - 1) / (d - 1) of the progress
of an exact step; the best step then takes the least time for the progress of an exact one. With a
long momentum all steps make nearly the same progress, and the best step is the cheapest.
"""

import json
from statistics import median
from typing import Any, Literal

import torch
from torch import nn

from skewflow.geometry import haar
from skewflow.kernels.rotate_factored.dispatch import is_worth_it
from skewflow.optim import FlowSGD

from ..measure.timing import Step, interleaved
from ..runs.assets import to_png
from ..runs.environment import environment
from ..runs.experiment import Figure
from ..runs.files import ROOT, RunError, read_json, recorded, write_bytes, write_json
from .command import DEVICE, Device, check_rounds, show

PICTURE = ROOT / "docs" / "explanation" / "which-end.png"
SHAPES = {
    "cpu": [(64, 64), (256, 256), (512, 512), (1024, 1024), (1024, 128), (2048, 2048)],
    "cuda": [(256, 256), (1024, 1024), (4096, 4096), (8192, 8192), (4096, 256), (5120, 1024)],
}
BATCHES = {"cpu": (16, 64, 256, 1024), "cuda": (32, 128, 512, 4096)}
BLOCKS = (2, 16, 64)
COLOURS = {"blocks": "#0072b2", "exact": "#d55e00", "factored": "#009e73"}

Steps = dict[str, Step]


def which_end(device: Device = DEVICE, save: bool = False, draw: bool = False) -> None:
    """Time steps of FlowSGD by blocks, exact and factored, for linear layers of several shapes.

    For each shape and batch it times the two products of the forward and backward pass, the product
    that forms the gradient, and the steps by blocks of 2, 16 and 64 rows, exact, and factored.

    Args:
        device: Device of the layers.
        save: Write results/bench/which_end_DEVICE.json of the repository.
        draw: Only draw docs/explanation/which-end.png from both files, without measurements.
    """
    check_rounds(device, 1, save or draw)
    if draw:
        _draw()
        return
    rows = _measure(device)
    if save:
        content = {"environment": environment(device), "rows": rows}
        write_json(recorded(f"which_end_{device}.json"), content)


def _milliseconds(steps: Steps, device: str) -> dict[str, float]:
    """The median of each step."""
    times, failures = interleaved(steps, torch.device(device), rounds=3, seconds=0.03)
    if failures:
        raise RunError(f"every step must run: {failures}.")
    return {name: median(each) for name, each in times.items()}


def _of_shape(d: int, k: int, device: str) -> dict[str, float]:
    """Times of the steps whose cost does not depend on the batch."""
    steps: Steps = {}
    X = haar(d, k, generator=torch.Generator().manual_seed(0)).to(device)
    G = torch.randn(d, k, device=device) / d
    plain = nn.Parameter(X.clone())
    plain.grad = G
    steps["SGD"] = torch.optim.SGD([plain], lr=1e-3, fused=device == "cuda").step
    sizes: list[int | Literal["dense"]] = [*(s for s in BLOCKS if s < d), "dense"]
    for s in sizes:
        p = nn.Parameter(X.clone())
        p.grad = G
        optimizer = FlowSGD(
            [p], lr=1e-4, block_size=s, retraction="polar" if s == "dense" else "exp"
        )
        steps["exact" if s == "dense" else f"blocks of {s}"] = optimizer.step
    return _milliseconds(steps, device)


def _of_batch(d: int, k: int, batch: int, device: str) -> dict[str, float]:
    """Times of the passes, the product that forms the gradient, and the factored step."""
    X = nn.Parameter(haar(d, k, generator=torch.Generator().manual_seed(0)).to(device))
    inputs, passed = (torch.randn(batch, n, device=device) for n in (d, k))
    A, B = inputs.mT / (d * batch) ** 0.5, passed.mT / batch**0.5
    W = X.detach().clone()
    optimizer = FlowSGD([X], lr=1e-4, block_size="auto")
    steps: Steps = {
        "passes": lambda: (inputs @ W, passed @ W.mT),
        "gradient": lambda: A @ B.mT,
    }
    if is_worth_it(batch, d, k, X.device):  # else the step is an exact one
        steps["factored"] = lambda: optimizer.step(factors={X: (A, B)})
    return _milliseconds(steps, device)


def _measure(device: str) -> list[dict[str, Any]]:
    """A row for each shape and batch."""
    rows = []
    for d, k in SHAPES[device]:
        single = _of_shape(d, k, device)
        for batch in BATCHES[device]:
            rows.append({"shape": [d, k], "batch": batch} | single | _of_batch(d, k, batch, device))
            show(json.dumps(rows[-1]))
    return rows


def _prices(row: dict[str, Any], whole: bool) -> dict[str, float]:
    """Milliseconds of a training step, or for the progress of an exact step if `whole`."""
    d, _ = row["shape"]
    found = {}
    for name in ("exact", "factored", *(f"blocks of {s}" for s in BLOCKS)):
        if name not in row:
            continue
        taken = row["passes"] + row[name] + (0.0 if name == "factored" else row["gradient"])
        s = int(name.rsplit(" ", 1)[1]) if name.startswith("blocks") else d
        found[name] = taken * ((d - 1) / (s - 1) if whole else 1.0)
    return found


def _patch(name: str) -> Any:
    """An entry of the legend."""
    from matplotlib.patches import Patch

    return Patch(color=COLOURS[name], label=name)


def _panel(axis: Any, rows: list[dict[str, Any]], whole: bool) -> None:
    """Draw the cheapest step for each shape and batch."""
    shapes = list(dict.fromkeys(tuple(row["shape"]) for row in rows))
    batches = list(dict.fromkeys(row["batch"] for row in rows))
    for row in rows:
        x, y = batches.index(row["batch"]), shapes.index(tuple(row["shape"]))
        found = _prices(row, whole)
        best = min(found, key=lambda name: found[name])
        part = _prices(row, whole=False)[best] / (row["passes"] + row["gradient"] + row["SGD"])
        colour = COLOURS[best.split(" ")[0]]
        axis.add_patch(_rectangle(x, y, colour))
        size = best.rsplit(" ", 1)[1] if best.startswith("blocks") else ""
        text = f"{'s = ' + size + ', ' if size else ''}{part:.2g} x"
        axis.text(x, y, text, ha="center", va="center", color="white", fontsize=8)
    axis.set_xlim(-0.5, len(batches) - 0.5)
    axis.set_ylim(len(shapes) - 0.5, -0.5)
    axis.set_xticks(range(len(batches)), [str(b) for b in batches])
    axis.set_yticks(range(len(shapes)), [f"{d} x {k}" for d, k in shapes])
    axis.grid(visible=False)


def _rectangle(x: int, y: int, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=colour, lw=0)


def _draw() -> None:
    """Draw a panel for each device and measure, with the cheapest step and its cost over SGD's."""
    files = {device: read_json(recorded(f"which_end_{device}.json")) for device in SHAPES}

    def drawing(canvas: Any) -> None:
        axes = canvas.subplots(2, 2)
        for line, (kind, whole) in enumerate((("most progress", True), ("least price", False))):
            for axis, (device, found) in zip(axes[line], files.items(), strict=True):
                title = "two cores" if device == "cpu" else found["environment"]["device"]
                axis.set_title(f"{title}, {kind}", fontsize=10)
                _panel(axis, found["rows"], whole)
        for axis in axes[-1]:
            axis.set_xlabel("batch, or rank of the gradient")
        marks = [_patch(name) for name in COLOURS]
        canvas.legend(handles=marks, loc="outside lower center", ncols=3)

    write_bytes(PICTURE, to_png(Figure("which-end", "", drawing, (10.0, 7.0))))
