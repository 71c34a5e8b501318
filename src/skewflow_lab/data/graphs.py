"""Gset's graphs and SLAM pose graphs, from files, with the best values in the literature."""

import gzip
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from ..runs.files import RunError
from .files import data_folder

SOURCES = {
    "gset": "the folder Gset of github.com/NicolasBoumal/maxcut",
    "pose_graphs": "the folder data of github.com/david-m-rosen/SE-Sync",
}


@cache
def known() -> dict[str, dict[str, dict[str, Any]]]:
    """By folder and name: the SHA-256 of the text, and the best published value.

    The best cuts are the larger of those of Benlic and Hao (2013) and of AOCoptimizer.jl; the
    relaxations are printed in MESDP's experiments; the optima of pose graphs are those of Rosen et
    al. (2019), Tables 1 and 2. We did not compute any of them.
    """
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(
        (Path(__file__).parent / "graphs.json").read_text(encoding="utf-8")
    )
    return found


def graph_file(folder: str, name: str) -> Path:
    """The packed file of a graph in $SKEWFLOW_DATA, checked against its SHA-256.

    Raises:
        RunError: If the graph is not known, or its file is missing or has another checksum.
    """
    ending = ".g2o.gz" if folder == "pose_graphs" else ".gz"
    if name not in known()[folder]:
        raise RunError(f"{name!r} is no graph of {folder}: known are {', '.join(known()[folder])}.")
    path = data_folder() / folder / f"{name}{ending}"
    try:
        text = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise RunError(
            f"{path} must be a complete file, packed by gzip: {error}. Its text is in "
            f"{SOURCES[folder]}; the environment variable SKEWFLOW_DATA names the folder of all "
            "data. The preset `quick` needs no files."
        ) from error
    if hashlib.sha256(text).hexdigest() != known()[folder][name]["sha256"]:
        raise RunError(
            f"{path} is not the file it should be: its text has another SHA-256. Copy a whole one "
            f"from {SOURCES[folder]}."
        )
    return path
