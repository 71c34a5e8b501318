"""The commands of the pages exist, with the flags that the pages give them."""

import re
import shlex
import sys

import pytest

from skewflow_lab.cli import main
from skewflow_lab.results.sections import sections
from skewflow_lab.runs.files import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINES = {
    line
    for page in PAGES
    for block in re.findall(r"```\n(.*?)```", page.read_text(), re.DOTALL)
    for line in block.splitlines()
    if line.startswith("skewflow ")
}
LINES |= {
    line
    for record in sections(ROOT / "results")
    for line in record.commands
    if line.startswith("skewflow ")
}


def names(words):
    """The subcommands at the start of a command."""
    depth = 2 if words[0] in ("bench", "reproduce") else 1
    return tuple(words[:depth])


@pytest.mark.parametrize("command", sorted({names(shlex.split(line)[1:]) for line in LINES}))
def test_a_command_of_the_pages_has_its_flags(command, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["skewflow", *command, "--help"])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 0
    known = capsys.readouterr().out
    for words in (shlex.split(line)[1:] for line in LINES):
        if names(words) == command:
            for flag in (word for word in words if word.startswith("--")):
                assert re.search(rf"{flag}\b", known), f"skewflow {' '.join(words)}: {flag}"
