"""`skewflow bench-step`: milliseconds of one step of FlowSGD and of everything beside it."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import nn

from ...geometry.haar import haar
from ...optim import FlowSGD
from ..environment import environment
from .baselines import BASELINES, LR, Step
from .timing import interleaved, ratio

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class StepBench:
    """Time one optimiser step on a square or tall matrix."""

    d: tuple[int, ...] = (256, 512, 1024, 2048)
    """Rows."""
    k: int | None = None
    """Columns; as many as rows when omitted."""
    block_sizes: tuple[int, ...] = (2, 8, 64)
    """Block sizes of FlowSGD."""
    dtype: str = "float32"
    """float32, float64 or bfloat16."""
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    """cpu or cuda."""
    rounds: int = 7
    """Interleaved rounds."""
    largest_cubic: int = 4096
    """Largest d at which the cubic methods run."""
    out: Path = Path("runs/bench-step")
    """Folder of the JSON file and the figure."""


def steps(config: StepBench, d: int) -> tuple[dict[str, Step], list[str]]:
    """The steps to time at d, and the names of peers that are not installed."""
    device, dtype = torch.device(config.device), DTYPES[config.dtype]
    k = config.k or d
    generator = torch.Generator(device).manual_seed(0)
    X = haar(d, k, generator=generator, dtype=dtype)
    G = torch.randn(d, k, generator=generator, dtype=torch.float32, device=device).to(dtype)

    def parameter() -> nn.Parameter:
        p = nn.Parameter(X.clone())
        p.grad = G
        return p

    fused: dict[str, Any] = {"fused": True} if device.type == "cuda" else {}
    found: dict[str, Step] = {
        "SGD": torch.optim.SGD([parameter()], lr=LR, **fused).step,
        "SGD momentum": torch.optim.SGD([parameter()], lr=LR, momentum=0.9, **fused).step,
        "AdamW": torch.optim.AdamW([parameter()], lr=LR, **fused).step,
    }
    for s in config.block_sizes:
        if s < d:
            found[f"FlowSGD s={s}"] = FlowSGD([parameter()], lr=LR / d, block_size=s).step
    found["FlowSGD s=2 momentum"] = FlowSGD(
        [parameter()], lr=LR / d, momentum=0.9, block_size=2
    ).step
    missing: list[str] = []
    if d <= config.largest_cubic and dtype != torch.bfloat16:
        found["FlowSGD dense"] = FlowSGD([parameter()], lr=LR, block_size="dense").step
        for name, make in BASELINES.items():
            try:
                found[name] = _no_grad(make(X.clone(), G))
            except ModuleNotFoundError:
                missing.append(name)
    return found, missing


def run(config: StepBench, progress: Progress | None = None) -> dict[str, Any]:
    """Time every step at every size; write the JSON file, return it."""
    device = torch.device(config.device)
    rows: list[dict[str, Any]] = []
    for d in config.d:
        found, missing = steps(config, d)
        task = None if progress is None else progress.add_task(f"d = {d}", total=config.rounds)

        def tick(task: TaskID | None = task) -> None:
            if progress is not None and task is not None:
                progress.update(task, advance=1)

        times = interleaved(found, device, rounds=config.rounds, on_round=tick)
        for name in found:
            base = "SGD momentum" if "momentum" in name else "SGD"
            rows.append(
                {
                    "d": d,
                    "k": config.k or d,
                    "method": name,
                    "ms": median(times[name]),
                    "ratio": ratio(times, name, base),
                    "base": base,
                }
            )
        rows += [{"d": d, "k": config.k or d, "method": name, "ms": None} for name in missing]
        found.clear()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    result = {"config": _plain(asdict(config)), "environment": environment(), "rows": rows}
    config.out.mkdir(parents=True, exist_ok=True)
    (config.out / "step.json").write_text(json.dumps(result, indent=1))
    return result


def main(config: StepBench) -> None:
    """Run, print the table, draw the figure, say where everything is."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        result = run(config, progress)
    out = Console()
    table = Table(title=f"one step on {result['environment']['device']}, {config.dtype}")
    for name in ("d", "method", "ms", "ratio", "to"):
        table.add_column(name, justify="right")
    for row in result["rows"]:
        if row["ms"] is None:
            table.add_row(str(row["d"]), row["method"], "not installed", "", "")
        else:
            ms, factor = f"{row['ms']:.4f}", f"{row['ratio']:.2f}"
            table.add_row(str(row["d"]), row["method"], ms, factor, row["base"])
    out.print(table)
    draw(result, config.out / "step.png")
    out.print(f"written: {config.out / 'step.json'}, {config.out / 'step.png'}")


def draw(result: dict[str, Any], path: Path) -> None:
    """Milliseconds against d on logarithmic axes, with the fitted exponent of each method."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    rows = [row for row in result["rows"] if row["ms"] is not None]
    fig, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for name in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == name]
        label = f"{name}, d^{exponent(rows, name):.1f}" if len(mine) > 2 else name
        style = "-o" if name.startswith("FlowSGD") else "--."
        axis.loglog([r["d"] for r in mine], [r["ms"] for r in mine], style, label=label, ms=4)
    axis.set(xlabel="d", ylabel="milliseconds a step", title=result["environment"]["device"])
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7, frameon=False)
    fig.savefig(path, dpi=150)
    plt.close(fig)


def exponent(rows: list[dict[str, Any]], method: str, smallest: int = 0) -> float:
    """Slope of log(ms) against log(d): how the step's cost grows."""
    points = [
        (math.log(r["d"]), math.log(r["ms"]))
        for r in rows
        if r["method"] == method and r["ms"] and r["d"] >= smallest
    ]
    x = torch.tensor([p[0] for p in points], dtype=torch.float64)
    y = torch.tensor([p[1] for p in points], dtype=torch.float64)
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())


def _no_grad(step: Step) -> Step:
    def run_it() -> object:
        with torch.no_grad():
            return step()

    return run_it


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """What the numbers depend on; the folder they go to is not part of it."""
    return {key: value for key, value in config.items() if not isinstance(value, Path)}
