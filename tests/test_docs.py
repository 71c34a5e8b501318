"""The documentation is true: its examples run, its names exist, its pages are short."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]
MAP = "\n".join(
    (ROOT / "docs" / "explanation" / f"{name}.md").read_text() for name in ("paper-map", "errata")
)


def blocks(page, kind="python"):
    return re.findall(rf"```{kind}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize(
    "page", [page for page in WRITTEN if blocks(page)], ids=lambda page: page.stem
)
def test_the_examples_of_a_page_run(page):
    scope = {"__name__": "page"}
    for code in blocks(page):
        exec(code, scope)


def test_every_example_is_run():
    """Only `python` and, under `make test-clients`, `python clients` are code."""
    for page in WRITTEN:
        kinds = set(re.findall(r"^```(\S.*)$", page.read_text(), re.MULTILINE))
        assert kinds <= {"python", "python clients"}, f"{page.name} has {kinds}"


def test_a_page_can_be_read_in_one_go():
    """All but the generated one, which is for looking something up."""
    lines = {page.name: len(page.read_text().splitlines()) for page in PAGES}
    assert {name for name, count in lines.items() if count > 150} <= {"results.md"}


def test_a_how_to_page_starts_with_the_question_of_its_reader():
    for page in [page for page in PAGES if page.parent.name == "how-to"]:
        first = page.read_text().split("\n\n")[1]
        assert re.match(r"\*[^*]+\?\*", first), page.name


def test_the_functions_of_the_paper_map_exist():
    rooms = "distributed|es|flows|geometry|tournaments|samplers|kernels|optim|nn|problems"
    names = re.findall(rf"`((?:{rooms})\.[A-Za-z_.]+)`", MAP)
    assert len(names) > 30
    for name in names:
        module, *attributes = name.split(".")
        found = importlib.import_module(f"skewflow.{module}")
        for attribute in attributes:
            found = getattr(found, attribute)


def test_no_layer_of_the_paper_says_that_it_is_not_in_the_paper():
    names = set(re.findall(r"`nn\.(\w+)", MAP.split("## Beyond the paper")[0]))
    assert "SylvesterFlow" in names
    for name in names:
        found = getattr(importlib.import_module("skewflow.nn"), name)
        assert "not in the paper" not in found.__doc__.lower(), name


def test_the_tests_of_the_paper_map_exist():
    names = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", MAP)
    assert len(names) > 50
    for path, name in names:
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


def test_links_between_pages_lead_somewhere():
    for page in WRITTEN:
        for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
            target = page.parent / link if link else page
            assert target.exists(), f"{page.name} links to {link}"
            if anchor:
                titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
                anchors = [re.sub(r"[^\w\- ]", "", t).lower().replace(" ", "-") for t in titles]
                assert anchor in anchors, f"{page.name} links to {link}#{anchor}"
