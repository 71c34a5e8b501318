"""Append a measurement to benchmarks/data/results.csv, with the machine and versions behind it."""

from collections.abc import Sequence
from datetime import datetime, timezone

from skewflow_lab.measure.timing import percentiles
from skewflow_lab.runs.environment import environment
from skewflow_lab.runs.files import append_rows, repository_table


def record(benchmark: str, case: str, unit: str, values: Sequence[float]) -> None:
    """Write one row: the 20th, 50th and 80th percentile of `values`."""
    behind = environment("cpu")
    row = {
        "benchmark": benchmark,
        "case": case,
        "unit": unit,
        **percentiles(values),
        "rounds": len(values),
        **{key: behind[key] for key in ("device", "threads", "python", "torch", "commit")},
        "utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    append_rows(repository_table("results"), [row])
