"""Write requirements.lock: what the tests need, with the hashes of all files of each version.

Run it where `make test` has installed everything, with the address of a simple package index:
`.venv/bin/python scripts/lock.py INDEX`. The versions are those of constraints.txt.

torch and triton are left out: their builds for a CPU and for a GPU have one version and other
files, and which of them is right depends on the machine.
"""

import re
import sys
import urllib.request
from html.parser import HTMLParser
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urldefrag

import tomllib
from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
OUTSIDE = {"torch", "triton"}


def constraints() -> dict[str, str]:
    """The versions of constraints.txt by canonical name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def needed() -> set[str]:
    """All packages that the extras `lab` and `dev` install here, by canonical name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    left = [Requirement(text) for text in project["dependencies"] + extras["lab"] + extras["dev"]]
    found: set[tuple[str, str]] = set()
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in found or name in OUTSIDE:
                continue
            found.add((name, extra))
            texts = extras[extra] if name == "skewflow" and extra else _required(name)
            inner = map(Requirement, texts)
            left += [r for r in inner if r.marker is None or r.marker.evaluate({"extra": extra})]
    return {name for name, _ in found} - {"skewflow"}


def _required(name: str) -> list[str]:
    return [] if name == "skewflow" else metadata.requires(name) or []


class _Links(HTMLParser):
    """The addresses on a page of the index."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Keep what a link leads to."""
        self.found += [value for key, value in attributes if key == "href" and value]


def hashes(index: str, name: str, version: str) -> list[str]:
    """The SHA-256 of every file of a version, for all systems."""
    with urllib.request.urlopen(f"{index.rstrip('/')}/{name}/") as page:
        links = _Links()
        links.feed(page.read().decode())
    found = set()
    for link in links.found:
        address, fragment = urldefrag(link)
        file = unquote(address.rsplit("/", 1)[-1])
        digest = re.fullmatch("sha256=([0-9a-f]{64})", fragment)
        if digest and _version(file) == version:
            found.add(digest[1])
    if not found:
        raise SystemExit(f"{index} must have a file of {name}=={version} with its sha256.")
    return sorted(found)


def _version(file: str) -> str | None:
    try:
        parse = parse_wheel_filename if file.endswith(".whl") else parse_sdist_filename
        return str(parse(file)[1])
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None  # installers of another kind


def main(index: str) -> None:
    """Write the file."""
    versions, names, text = constraints(), sorted(needed()), ""
    if missing := [name for name in names if name not in versions]:
        raise SystemExit(f"constraints.txt must pin every package: add {', '.join(missing)}.")
    for name in names:
        listed = [f"--hash=sha256:{digest}" for digest in hashes(index, name, versions[name])]
        text += " \\\n    ".join([f"{name}=={versions[name]}", *listed]) + "\n"
    LOCK.write_text(f"# Written by scripts/lock.py. Do not edit.\n{text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
