"""`skewflow report`: one page that holds every table and figure."""

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from ..bench.quality.experiment import Quality
from ..experiment import Experiment, Video
from ..experiments import EXPERIMENTS
from ..files import RunError, read_json, read_object, write_atomically
from .assets import to_svg, to_text

HERE = Path(__file__).parent
SUMMARY = {
    "experiment": str,
    "preset": str,
    "command": str,
    "verdict": str,
    "config": dict,
    "results": dict,
}
"""What every summary.json holds."""


def report(
    runs: tyro.conf.Positional[Path],
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html"),
) -> None:
    """Gather finished runs on one page that needs nothing else.

    Args:
        runs: A folder of runs, or of one run; every summary.json below it is shown.
        out: The page to write.
    """
    page = build(runs)
    try:
        write_atomically(out, page)
    except OSError as error:
        raise RunError(
            f"cannot write {out}: {error.strerror or error}. Make room, or name a file in a folder "
            "that can be written."
        ) from error
    print(f"written: {out.resolve()}")


def build(runs: Path) -> str:
    """The page of all finished runs below `runs`.

    Raises:
        RunError: If there is none, or one of an experiment that this version does not know.
    """
    from jinja2 import Environment, FileSystemLoader

    folders = sorted(path.parent for path in runs.rglob("summary.json"))
    if not folders:
        raise RunError(
            f"{runs} must hold a finished run, a folder with summary.json: found none. "
            "Make one with `skewflow reproduce NAME`."
        )
    sections = [_section(folder) for folder in folders]
    sections.sort(key=lambda section: (list(_shown()).index(section["name"]), section["path"]))
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["text"] = to_text
    style = (HERE / "page.css").read_text()
    return environment.get_template("page.html.jinja").render(sections=sections, style=style)


def _shown() -> dict[str, Experiment[Any]]:
    """What the page knows: the experiments, and the benchmark that is run as one."""
    return {**EXPERIMENTS, Quality.name: Quality()}


def _section(folder: Path) -> dict[str, Any]:
    """What the page shows of one run."""
    summary = read_object(folder / "summary.json", **SUMMARY)
    name = summary["experiment"]
    known = _shown()
    if name not in known:
        raise RunError(
            f"{folder} holds a run of {name!r}, which this version does not know: it knows "
            f"{', '.join(sorted(known))}. Leave that folder out."
        )
    experiment = known[name]
    results, timing = summary["results"], _optional(folder / "timing.json", {})
    starts = _optional(folder / "environment.json", [])
    return {
        "name": name,
        "path": str(folder),
        "title": experiment.title,
        "paper": experiment.paper,
        "verdict": summary["verdict"],
        "preset": summary["preset"],
        "command": summary["command"],
        "config": summary["config"],
        "starts": starts,
        "tables": experiment.tables(results, timing),
        "videos": _videos(folder, experiment.videos(results)),
        "figures": [(figure, to_svg(figure)) for figure in experiment.figures(results)],
    }


def _videos(folder: Path, videos: Sequence[Video]) -> list[tuple[Video, str]]:
    """Those that were made, as text that stands inside the page."""
    paths = {video: folder / "videos" / f"{video.name}.gif" for video in videos}
    return [
        (video, f"data:image/gif;base64,{b64encode(path.read_bytes()).decode()}")
        for video, path in paths.items()
        if path.exists()
    ]


def _optional(path: Path, default: Any) -> Any:
    return read_json(path) if path.exists() else default
