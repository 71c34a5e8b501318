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
    """Run every experiment in its smallest preset, print what came out, write the report.

    An experiment whose packages are not installed is left out, with a line that says so.

    Args:
        out: The runs go here; a run that is there already is not made again.
        page: The report to write.
    """
    console = Console()
    table = Table("experiment", "what the numbers say", "seconds", show_lines=True)
    for name, experiment in EXPERIMENTS.items():
        if (needed := experiment.missing()) is not None:
            table.add_row(name, f"left out: {needed}", "")
            continue
        began = time.perf_counter()
        preset = "ci" if "ci" in experiment.presets else "quick"
        config = experiment.presets[preset]
        try:
            folder = execute(
                experiment, config, preset=preset, out=out, resume=True, console=console
            )
        except KeyboardInterrupt:
            console.print("stopped; the same command goes on", style="red")
            sys.exit(130)
        verdict = read_json(folder / "summary.json")["verdict"]
        table.add_row(name, verdict, f"{time.perf_counter() - began:.0f}")
    console.print(table)
    report(out, page)
