"""Append a measurement to benchmarks/data/results.csv, with the machine and versions behind it."""

import csv
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import quantiles

import torch

from skewflow.lab.environment import commit, device_name

RESULTS = Path(__file__).parent / "data" / "results.csv"
FIELDS = [
    "benchmark",
    "case",
    "unit",
    "p20",
    "p50",
    "p80",
    "rounds",
    "device",
    "threads",
    "python",
    "torch",
    "commit",
    "utc",
]


def record(benchmark: str, case: str, unit: str, values: Sequence[float]) -> None:
    """Write one row: the 20th, 50th and 80th percentile of `values`."""
    tenths = quantiles([*values, *values], n=10, method="inclusive")  # doubled: one value will do
    p20, p50, p80 = tenths[1], tenths[4], tenths[7]
    row = {
        "benchmark": benchmark,
        "case": case,
        "unit": unit,
        "p20": f"{p20:.4g}",
        "p50": f"{p50:.4g}",
        "p80": f"{p80:.4g}",
        "rounds": len(values),
        "device": device_name(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit(),
        "utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if new:
            writer.writeheader()
        writer.writerow(row)
