"""`skewflow collect`: finished runs of parts of one experiment, shown as one run."""

from pathlib import Path
from typing import Annotated

import tyro

from ..runs.assets import assets
from ..runs.files import RunError, read_json, read_object, write_bytes, write_checked, write_json
from .finished import read_run, read_video, shown

COLLECTED = "collected"
"""Placeholder in a configuration file for the preset of a run."""


def collect(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional], out: Path = Path("results")
) -> None:
    """Merge finished runs of parts of one experiment: results, tables, figures, videos.

    Args:
        runs: Their folders, for rl those of different tasks or sizes.
        out: The merged run goes to a folder in here with the experiment's name; an earlier merged
            run is replaced.
    """
    folder = collected(runs, out)
    print(read_json(folder / "summary.json")["verdict"])
    print(f"written: {(folder / 'summary.json').resolve()}")


def collected(runs: tuple[Path, ...], out: Path) -> Path:
    """Write the merged run and return its folder.

    Raises:
        RunError: If there are no runs, or they are not parts of one experiment.
    """
    parts = [read_run(run) for run in runs]
    names = sorted({part.experiment.name for part in parts})
    if len(names) != 1:
        raise RunError(
            "runs that are collected must be of one experiment: got "
            f"{', '.join(names) or 'none'}. Name the folders of finished runs, each with its "
            "summary.json."
        )
    experiment = parts[0].experiment
    folder = out / experiment.name
    _check_target(folder)
    with shown(", ".join(str(run / "summary.json") for run in runs)):
        results, timing = experiment.merge([(p.summary["results"], p.timing) for p in parts])
        verdict = experiment.verdict(results)
        files = assets(experiment, results, timing)
        experiment.videos(results)  # refuses names that `report` would refuse
    for run in runs:
        for video in sorted((run / "videos").glob("*.gif")):
            files[f"videos/{video.name}"] = read_video(video)
    whole = {
        "experiment": experiment.name,
        "preset": COLLECTED,
        "command": "\n".join(part.summary["command"] for part in parts),
        "config": {f"run {n}": part.summary["config"] for n, part in enumerate(parts, 1)},
    }
    starts = [{"run": str(n), **start} for n, p in enumerate(parts, 1) for start in p.starts]
    write_json(folder / "environment.json", starts)
    write_checked(folder / "timing.json", timing)
    write_json(folder / "config.json", whole)
    write_checked(folder / "summary.json", {**whole, "verdict": verdict, "results": results})
    for name, data in files.items():
        write_bytes(folder / name, data)
    return folder


def _check_target(folder: Path) -> None:
    """Refuse to overwrite a run that was not merged from others."""
    path = folder / "config.json"
    if path.exists() and read_object(path, preset=str)["preset"] != COLLECTED:
        raise RunError(
            f"{folder} holds a run, and a collected one must not replace it. Write elsewhere "
            "with --out, or remove that folder."
        )
