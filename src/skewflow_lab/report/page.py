"""`skewflow report`: one page that holds every table and figure."""

import re
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import tyro

from ..runs.assets import to_svg, to_text
from ..runs.code import recorded
from ..runs.experiment import Table, Video
from ..runs.files import RunError, write_atomically
from .finished import FinishedRun, known_experiments, read_run, read_video, shown

HERE = Path(__file__).parent
BRIEF = 240
"""Most characters of a claim or a verdict in the summary at the top; its section has all of it."""


def report(
    runs: tyro.conf.Positional[Path],
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html"),
) -> None:
    """Write a page of finished runs that needs no other file.

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
        RunError: If there is no run, or one of an experiment that this version does not know.
    """
    from jinja2 import Environment, FileSystemLoader

    folders = sorted(path.parent for path in runs.rglob("summary.json"))
    if not folders:
        raise RunError(
            f"{runs} must hold a finished run, a folder with summary.json: found none. "
            "Make one with `skewflow reproduce NAME`."
        )
    order = list(known_experiments())
    found = sorted(map(read_run, folders), key=lambda run: order.index(run.experiment.name))
    sections = [_section(run, number) for number, run in enumerate(found, 1)]
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["brief"] = _brief
    style = (HERE / "page.css").read_text()
    return environment.get_template("page.html.jinja").render(sections=sections, style=style)


def _brief(text: str) -> str:
    """A long text cut after its first sentences, clauses or words."""
    if len(text) <= BRIEF:
        return text
    ends = [found.start() for found in re.finditer(r"\.(?= [A-Z])|;(?= )", text[:BRIEF])]
    if ends and ends[-1] > BRIEF / 2:
        return f"{text[: ends[-1] + 1].rstrip(';')} …"
    return shorten(text, BRIEF, placeholder=" …")


def _section(run: FinishedRun, number: int) -> dict[str, Any]:
    """The entries of one run for the template of the page."""
    results, name = run.summary["results"], f"{run.experiment.name}-{number}"
    with shown(run.folder / "summary.json"):
        tables = [_text(table) for table in run.experiment.tables(results, run.timing)]
        videos = _videos(run.folder, run.experiment.videos(results))
        figures = [
            {
                "id": (anchor := f"{name}-{figure.name}"),
                "caption": figure.caption,
                "svg": to_svg(figure, anchor),
            }
            for figure in run.experiment.figures(results)
        ]
    starts = [{key: value for key, value in start.items() if value} for start in run.starts]
    return {
        **{key: run.summary[key] for key in ("verdict", "preset", "command", "config")},
        "id": name,
        "name": run.experiment.name,
        "title": run.experiment.title,
        "paper": run.experiment.paper,
        "recorded": recorded(starts),
        "devices": list(dict.fromkeys(s["device"] for s in starts if "device" in s)),
        "starts": [{k: v for k, v in start.items() if k != "code"} for start in starts],
        "tables": tables,
        "videos": videos,
        "figures": figures,
    }


def _text(table: Table) -> dict[str, Any]:
    """A table with its values as text; a value that cannot be shown raises here."""
    rows = [[to_text(value) for value in row] for row in table.rows]
    return {
        "caption": table.caption,
        "columns": list(zip(table.columns, table.numeric, strict=True)),
        "rows": [list(zip(row, table.numeric, strict=True)) for row in rows],
    }


def _videos(folder: Path, videos: Sequence[Video]) -> list[tuple[Video, str]]:
    """The videos that exist, as text to embed in the page."""
    paths = {video: folder / "videos" / f"{video.name}.gif" for video in videos}
    return [
        (video, f"data:image/gif;base64,{b64encode(read_video(path)).decode()}")
        for video, path in paths.items()
        if path.exists()
    ]
