"""The public names, so that a change of the interface shows in the diff."""

import importlib
import re
from pathlib import Path

LISTED = Path(__file__).parent / "public_api.txt"
MODULES = [
    "distributed",
    "es",
    "flows",
    "geometry",
    "kernels",
    "nn",
    "optim",
    "problems",
    "samplers",
    "tournaments",
    "tournaments.theory",
]


def public_names():
    for module in MODULES:
        package = importlib.import_module(f"skewflow.{module}")
        yield from (f"{module}.{name}" for name in package.__all__)


def test_public_names_are_the_listed_ones():
    assert sorted(public_names()) == LISTED.read_text().split()


def documentation(name):
    module, attribute = name.rsplit(".", 1)
    return getattr(importlib.import_module(f"skewflow.{module}"), attribute).__doc__


def test_every_public_name_exists_and_is_documented():
    assert all(documentation(name) for name in public_names())


def test_every_public_name_says_where_the_paper_has_it():
    source = re.compile(
        r"Sec\.|Eq\.|Lemma|Theorem|Definition|Algorithm|Table|not\s+in\s+the\s+paper", re.I
    )
    elsewhere = ("tournaments.theory", "optim.")
    names = [name for name in public_names() if not name.startswith(elsewhere)]
    names += [name for name in public_names() if name.startswith("tournaments.theory.")]
    assert [name for name in names if not source.search(documentation(name))] == []


def test_packages_export_what_they_list():
    for module in MODULES:
        package = importlib.import_module(f"skewflow.{module}")
        assert package.__all__ == sorted(package.__all__)
