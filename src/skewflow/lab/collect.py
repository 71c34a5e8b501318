"""`skewflow collect`: finished runs of parts of one experiment, shown as one run."""

from pathlib import Path
from typing import Annotated

import tyro

from .experiments import EXPERIMENTS
from .files import RunError, read_json, read_object, write_bytes, write_json
from .report.assets import write_assets
from .report.command import SUMMARY
from .run import read_starts

COLLECTED = "collected"
"""Stands where a run has its preset."""


def collect(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional], out: Path = Path("results")
) -> None:
    """Put finished runs of parts of one experiment together: results, tables, figures, videos.

    Args:
        runs: Their folders; of rl, runs of different tasks or sizes.
        out: The folder with the experiment's name is made in here, or written anew.
    """
    folder = collected(runs, out)
    print(read_json(folder / "summary.json")["verdict"])
    print(f"written: {(folder / 'summary.json').resolve()}")


def collected(runs: tuple[Path, ...], out: Path) -> Path:
    """The folder of the collected run.

    Raises:
        RunError: If there are none, or they are not parts of one experiment.
    """
    summaries = [read_object(run / "summary.json", **SUMMARY) for run in runs]
    names = sorted({summary["experiment"] for summary in summaries})
    if len(names) != 1 or names[0] not in EXPERIMENTS:
        found = ", ".join(names) or "none"
        raise RunError(
            f"runs that are collected must be of one experiment that this version knows: got "
            f"{found}. Name the folders of finished runs, each with its summary.json."
        )
    experiment = EXPERIMENTS[names[0]]
    clocks = [read_object(run / "timing.json") for run in runs]
    parts = [summary["results"] for summary in summaries]
    results, timing = experiment.merge(list(zip(parts, clocks, strict=True)))
    whole = {
        "experiment": experiment.name,
        "preset": COLLECTED,
        "command": "\n".join(summary["command"] for summary in summaries),
        "config": {f"run {n}": part["config"] for n, part in enumerate(summaries, 1)},
    }
    folder = out / experiment.name
    _check_target(folder)
    starts = [
        {"run": str(n), **start}
        for n, run in enumerate(runs, 1)
        for start in read_starts(run / "environment.json")
    ]
    write_json(folder / "environment.json", starts)
    write_json(folder / "timing.json", timing)
    write_json(folder / "config.json", whole)
    for run in runs:
        for video in sorted((run / "videos").glob("*.gif")):
            write_bytes(folder / "videos" / video.name, video.read_bytes())
    write_json(
        folder / "summary.json",
        {**whole, "verdict": experiment.verdict(results), "results": results},
    )
    write_assets(experiment, results, timing, folder)
    return folder


def _check_target(folder: Path) -> None:
    """A run that was made is not written over."""
    path = folder / "config.json"
    if path.exists() and read_object(path, preset=str)["preset"] != COLLECTED:
        raise RunError(
            f"{folder} holds a run, and a collected one must not take its place. Write elsewhere "
            "with --out, or remove that folder."
        )
