"""`skewflow demo`: the smallest preset of every experiment, their verdicts, and the report."""

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..paper import EXPERIMENTS
from ..runs.files import read_json
from ..runs.reproduce import execute
from .page import report


def demo(out: Path = Path("runs/demo"), page: Path = Path("report.html")) -> None:
    """Run every experiment in its smallest preset, print the verdicts, and write the report.

    An experiment whose packages are not installed is skipped, with a line that says so.

    Args:
        out: Folder of the runs; a run that exists already is not repeated.
        page: The report to write.
    """
    console = Console()
    table = Table("experiment", "what the numbers say", "seconds", show_lines=True)
    for name, experiment in EXPERIMENTS.items():
        if (needed := experiment.missing()) is not None:
            table.add_row(name, f"skipped: {needed}", "")
            continue
        began = time.perf_counter()
        preset = "ci" if "ci" in experiment.presets else "quick"
        config = experiment.presets[preset]
        try:
            folder = execute(
                experiment, config, preset=preset, out=out, resume=True, console=console
            )
        except KeyboardInterrupt:
            console.print("stopped; the same command continues", style="red")
            sys.exit(130)
        verdict = read_json(folder / "summary.json")["verdict"]
        table.add_row(name, verdict, f"{time.perf_counter() - began:.0f}")
    console.print(table)
    report(out, page)
