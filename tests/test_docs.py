"""The documentation is true: its examples run, and the names in the paper map exist."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_the_examples_of_a_page_run(page):
    scope = {}
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(code, scope)


def test_the_functions_of_the_paper_map_exist():
    text = (ROOT / "docs" / "explanation" / "paper-map.md").read_text()
    names = re.findall(
        r"`((?:es|flows|geometry|tournaments|samplers|kernels|optim|nn)\.[A-Za-z_.]+)`", text
    )
    assert len(names) > 30
    for name in names:
        module, *attributes = name.split(".")
        found = importlib.import_module(f"skewflow.{module}")
        for attribute in attributes:
            found = getattr(found, attribute)


def test_no_layer_of_the_paper_says_that_it_is_not_in_the_paper():
    text = (ROOT / "docs" / "explanation" / "paper-map.md").read_text()
    names = set(re.findall(r"`nn\.(\w+)", text.split("## Beyond the paper")[0]))
    assert "SylvesterFlow" in names
    for name in names:
        found = getattr(importlib.import_module("skewflow.nn"), name)
        assert "not in the paper" not in found.__doc__.lower(), name


def test_the_tests_of_the_paper_map_exist():
    text = (ROOT / "docs" / "explanation" / "paper-map.md").read_text()
    tests = "\n".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py"))
    names = re.findall(r"\b(test_[a-z0-9_]+)\b(?!\.py)", text)
    assert len(names) > 50
    missing = [name for name in names if f"def {name}" not in tests and f"{name}.py" not in text]
    assert not missing


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
