"""`skewflow bench sharded`: what a step of sharded weights sends, and its time on this machine."""

import json
import subprocess
import sys
from tempfile import TemporaryDirectory
from typing import Any

from rich.progress import track
from rich.table import Table

from ..measure.traffic import ring
from ..runs.environment import environment
from ..runs.files import RunError, recorded, write_json
from .command import check_rounds, show

NUMBER = 4
"""Weights of a shape, which a step moves together."""
SIZES = (2, 8, 32)
"""Block sizes."""
GPUS, ROWS = 64, 8192
"""The size of the model: GPUs, and rows and columns of one float32 weight."""
BANDWIDTH, LATENCY = 47e9, 25e-6
"""Bytes a second that a GPU sends, and seconds that any collective takes. The sources are in
docs/how-to/shard-weights.md."""

Rows = list[dict[str, Any]]


def sharded(
    d: int = 256, processes: tuple[int, ...] = (1, 2, 4), rounds: int = 20, save: bool = False
) -> None:
    """Count the bytes that steps of sharded weights send, and time them on local processes.

    Four weights of d x d and four of 4d x d/4 are split along their first dimension. The rivals are
    torch's Muon, which lets DTensor gather whole matrices, and Muon by an all-to-all. Processes of
    one machine share its cores and its memory, so the times contain no network. The second table is
    the cost on 64 GPUs, computed from bytes, a bandwidth and a latency.

    Args:
        d: Rows of the square weights.
        processes: Numbers of processes.
        rounds: Steps of each method, in turns; times are medians over them. CPU time is that of the
            busiest process, without its waits, so it can be read on a busy machine.
        save: Write results/bench/sharded.json of the repository.
    """
    check_rounds("cpu", rounds, save)
    if d < 32 or any(p < 1 or NUMBER % p for p in processes):
        raise RunError(
            f"--d must be at least 32 and --processes must divide {NUMBER}: got {d} and "
            f"{processes}."
        )
    rows = [row for p in track(processes) for row in _measured(p, d, rounds)]
    costs = model()
    show(_table(rows), _table(costs))
    if save:
        content = {"rows": rows, "model": costs, "environment": environment("cpu")}
        write_json(recorded("sharded.json"), content)


def model() -> Rows:
    """The traffic of a step of one square weight on 64 GPUs, and its least time."""
    whole = 4 * ROWS**2
    part = whole // GPUS
    sent = {
        f"blocks of {s}": (1, ring("all-reduce", 4 * (ROWS * (s - 1) // 2 + 1), GPUS))
        for s in SIZES
    }
    # 64 matrices at once: a GPU sends its part of each one, and gets 64 parts of one update.
    sent["Muon, all-to-all"] = 2, 2 * ring("all-to-all", part, GPUS)
    sent["weight and gradient gathered"] = 2, 2 * ring("all-gather", part, GPUS)
    return [
        {
            "step": name,
            "kB sent by a GPU": size / 1e3,
            "percent of the weight": 100 * size / whole,
            "collectives": collectives,
            "microseconds at full bandwidth": 1e6 * size / BANDWIDTH,
            "with latency": 1e6 * (size / BANDWIDTH + collectives * LATENCY),
        }
        for name, (collectives, size) in sent.items()
    ]


def _measured(processes: int, d: int, rounds: int) -> Rows:
    """The rows of all methods, from workers that step the weights together."""
    with TemporaryDirectory() as folder:
        workers = [
            subprocess.Popen(
                [sys.executable, "-m", f"{__package__}._sharded_worker", f"{folder}/store"]
                + [str(number) for number in (rank, processes, d, rounds)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(processes)
        ]
        printed = [worker.communicate()[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        raise RunError("a worker of this benchmark ended with the error above.")
    rows: Rows = json.loads(printed[0])
    return rows


def _table(rows: Rows) -> Table:
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    return table
