"""Which step wins where: blocks, exact or factored, by shape and batch.

``python benchmarks/which_end.py cpu|cuda [--save]`` takes a linear layer of each shape, and for
each batch times the two products of its forward and backward pass, the product that forms the
gradient, and the steps of FlowSGD by blocks of 2, 16 and 64 rows, exact, and factored. ``--save``
writes ``benchmarks/data/which_end_DEVICE.json``. ``python benchmarks/which_end.py draw`` makes
``docs/explanation/which-end.png`` from the files.

Where gradients are exact, blocks of s rows make the part (s - 1) / (d - 1) of the progress of an
exact step: the best has the least time for a whole one. Where steps are worth the same, as a long
momentum makes them nearly, the best is the cheapest.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from skewflow.geometry import haar
from skewflow.kernels.rotate_factored.dispatch import is_worth_it
from skewflow.optim import FlowSGD
from skewflow_lab.measure.timing import interleaved
from skewflow_lab.runs.assets import to_png
from skewflow_lab.runs.environment import check_device, environment
from skewflow_lab.runs.experiment import Figure
from skewflow_lab.runs.files import write_bytes, write_json

DATA = Path(__file__).parent / "data"
PICTURE = Path(__file__).parents[1] / "docs" / "explanation" / "which-end.png"
SHAPES = {
    "cpu": [(64, 64), (256, 256), (512, 512), (1024, 1024), (1024, 128), (2048, 2048)],
    "cuda": [(256, 256), (1024, 1024), (4096, 4096), (8192, 8192), (4096, 256), (5120, 1024)],
}
BATCHES = {"cpu": (16, 64, 256, 1024), "cuda": (32, 128, 512, 4096)}
BLOCKS = (2, 16, 64)
COLOURS = {"blocks": "#0072b2", "exact": "#d55e00", "factored": "#009e73"}

Steps = dict[str, Callable[[], object]]


def milliseconds(steps: Steps, device: str) -> dict[str, float]:
    times, failures = interleaved(steps, torch.device(device), rounds=3, seconds=0.03)
    if failures:
        raise RuntimeError(f"every step must run: {failures}")
    return {name: median(each) for name, each in times.items()}


def of_shape(d: int, k: int, device: str) -> dict[str, float]:
    """The steps whose price does not depend on the batch."""
    steps: Steps = {}
    X = haar(d, k, generator=torch.Generator().manual_seed(0)).to(device)
    G = torch.randn(d, k, device=device) / d
    plain = nn.Parameter(X.clone())
    plain.grad = G
    steps["SGD"] = torch.optim.SGD([plain], lr=1e-3, fused=device == "cuda").step
    for s in (*(s for s in BLOCKS if s < d), "dense"):
        p = nn.Parameter(X.clone())
        p.grad = G
        optimizer = FlowSGD(
            [p], lr=1e-4, block_size=s, retraction="polar" if s == "dense" else "exp"
        )
        steps["exact" if s == "dense" else f"blocks of {s}"] = optimizer.step
    return milliseconds(steps, device)


def of_batch(d: int, k: int, batch: int, device: str) -> dict[str, float]:
    """The passes, the product that forms the gradient, and the factored step."""
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
    return milliseconds(steps, device)


def measure(device: str) -> list[dict[str, Any]]:
    rows = []
    for d, k in SHAPES[device]:
        alone = of_shape(d, k, device)
        for batch in BATCHES[device]:
            rows.append({"shape": [d, k], "batch": batch} | alone | of_batch(d, k, batch, device))
            print(json.dumps(rows[-1]), flush=True)
    return rows


def prices(row: dict[str, Any], whole: bool) -> dict[str, float]:
    """Milliseconds of a step and of all before it, or for the whole progress of an exact one."""
    d, _ = row["shape"]
    found = {}
    for name in ("exact", "factored", *(f"blocks of {s}" for s in BLOCKS)):
        if name not in row:
            continue
        taken = row["passes"] + row[name] + (0.0 if name == "factored" else row["gradient"])
        s = int(name.rsplit(" ", 1)[1]) if name.startswith("blocks") else d
        found[name] = taken * ((d - 1) / (s - 1) if whole else 1.0)
    return found


def draw() -> None:
    """A panel for each device and each measure; in it the winners, and their price over SGD's."""
    files = {
        device: json.loads((DATA / f"which_end_{device}.json").read_text()) for device in SHAPES
    }

    def drawing(canvas: Any) -> None:
        axes = canvas.subplots(2, 2)
        for line, (kind, whole) in enumerate((("most progress", True), ("least price", False))):
            for axis, (device, found) in zip(axes[line], files.items(), strict=True):
                title = "two cores" if device == "cpu" else found["environment"]["device"]
                axis.set_title(f"{title}, {kind}", fontsize=10)
                panel(axis, found["rows"], whole)
        for axis in axes[-1]:
            axis.set_xlabel("batch, or rank of the gradient")
        marks = [patch(name) for name in COLOURS]
        canvas.legend(handles=marks, loc="outside lower center", ncols=3)

    write_bytes(PICTURE, to_png(Figure("which-end", "", drawing, (10.0, 7.0))))


def patch(name: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=COLOURS[name], label=name)


def panel(axis: Any, rows: list[dict[str, Any]], whole: bool) -> None:
    shapes = list(dict.fromkeys(tuple(row["shape"]) for row in rows))
    batches = list(dict.fromkeys(row["batch"] for row in rows))
    for row in rows:
        x, y = batches.index(row["batch"]), shapes.index(tuple(row["shape"]))
        found = prices(row, whole)
        best = min(found, key=lambda name: found[name])
        part = prices(row, whole=False)[best] / (row["passes"] + row["gradient"] + row["SGD"])
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("cpu", "cuda", "draw"))
    parser.add_argument(
        "--save", action="store_true", help="write benchmarks/data/which_end_*.json"
    )
    args = parser.parse_args()
    if args.what == "draw":
        draw()
        return
    check_device(args.what)
    rows = measure(args.what)
    if args.save:
        write_json(
            DATA / f"which_end_{args.what}.json",
            {"environment": environment(args.what), "rows": rows},
        )


if __name__ == "__main__":
    main()
