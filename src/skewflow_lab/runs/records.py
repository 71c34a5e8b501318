"""The page results/README.md: which commit and machine each recorded run is of.

``python -m skewflow_lab.runs.records`` writes it; a test fails while it differs from the records.
"""

from pathlib import Path

from .files import read_object, write_bytes
from .run import read_starts

HEAD = """# Recorded runs

`python -m skewflow_lab.runs.records` writes this page from the `environment.json` of each run. Each
number is as of the commit in its row: the code of a later commit may give other numbers until the
run is repeated. A `+` says that the tree held uncommitted changes.

| Run | Preset | Machine | Commit | Date |
|---|---|---|---|---|
"""


def page(results: Path) -> str:
    """A row for each run below `results`."""
    folders = sorted(path.parent for path in results.rglob("summary.json"))
    return HEAD + "".join(
        _row(folder, folder.relative_to(results).as_posix()) for folder in folders
    )


def _row(folder: Path, name: str) -> str:
    preset = read_object(folder / "summary.json", preset=str)["preset"]
    starts = read_starts(folder / "environment.json")
    machines, commits, dates = (
        ", ".join(dict.fromkeys(start[key] for key in keys for start in starts if key in start))
        for keys in (("device", "simulates on"), ("commit",), ("date",))
    )
    machines = machines.removesuffix(", cpu")  # simulated on the machine's own
    return f"| [{name}]({name}) | {preset} | {machines} | {commits} | {dates} |\n"


if __name__ == "__main__":
    write_bytes(Path("results/README.md"), page(Path("results")).encode())
