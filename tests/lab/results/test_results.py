"""docs/results.md and README.md hold the numbers of results/, and no others."""

import re

import pytest

from skewflow_lab.results.figure import draw
from skewflow_lab.results.page import page
from skewflow_lab.results.readme import BEGIN, END, ROWS, replaced
from skewflow_lab.results.records import BENCH
from skewflow_lab.results.sections import sections
from skewflow_lab.runs.files import ROOT

RESULTS, PAGE, README = ROOT / "results", ROOT / "docs" / "results.md", ROOT / "README.md"
AGAIN = "run `skewflow results`"
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d{1,2})?(?!\w)")


def values(text):
    """Each number of a text, its value, and half a unit of its last digit."""
    for word in NUMBER.findall(text):
        mantissa, _, power = word.replace(",", "").partition("e")
        digits = len(mantissa.partition(".")[2])
        unit = 10.0 ** (int(power or 0) - digits)
        yield word, float(f"{mantissa}e{power or 0}"), 0.501 * unit


def inside(record):
    """Every number of the files of a record that the page may show."""
    texts = [record.title, record.note, record.path, record.machine, record.date, *record.commands]
    paths = [record.file]
    if record.file.is_dir():
        paths = sorted((record.file / "tables").glob("*.csv"))
        texts += [record.verdict]
    texts += [path.read_text().replace(",", " ").replace("'", "") for path in paths]
    return [value for text in texts for _, value, _ in values(text)]


def strays(section, record):
    """The numbers of a section that its record does not have."""
    known = inside(record)
    text = re.sub(r"\]\([^)]*\)|commit [^;|]*;|\d+ rows,|# .*", " ", section)
    return [w for w, v, unit in values(text) if not any(abs(k - v) <= unit for k in known)]


@pytest.fixture(scope="module")
def written():
    """The sections of the page by title."""
    head, *parts = PAGE.read_text().split("\n## ")
    return head, {part.split("\n", 1)[0]: part for part in parts}


def test_the_page_is_that_of_the_results():
    assert PAGE.read_text() == page(RESULTS), f"docs/results.md is older than results/: {AGAIN}"


def test_the_table_of_the_readme_is_that_of_the_results():
    text = README.read_text()
    assert text == replaced(text, RESULTS), f"README.md is older than results/: {AGAIN}"


@pytest.mark.parametrize("record", sections(RESULTS), ids=lambda record: record.path)
def test_every_number_of_a_section_is_in_the_files_of_its_record(record, written):
    assert not strays(written[1][record.title], record)


def test_a_number_typed_by_hand_is_found(written):
    record = next(r for r in sections(RESULTS) if r.path.endswith("/step_h200.json"))
    section = written[1][record.title]
    assert "0.0548" in section
    assert strays(section.replace("0.0548", "0.9548"), record) == ["0.9548"]
    assert strays(section + "\nIt is 7.77 times faster.", record) == ["7.77"]


def test_every_recorded_result_has_a_section():
    found = {path.parent for path in RESULTS.rglob("summary.json")}
    found |= {path for path in (RESULTS / BENCH).iterdir() if path.suffix in (".json", ".csv")}
    assert found == {record.file for record in sections(RESULTS)}


def test_the_readme_has_numbers_only_where_they_are_generated():
    """Outside of the generated table and the example, only names, versions and years."""
    text = README.read_text()
    assert len(text) <= 7000
    assert len(text.splitlines()) <= 110
    assert len(ROWS) <= 8
    prose = text.replace(text[text.index(BEGIN) : text.index(END)], "")
    prose = re.sub(r"```python.*?```|\]\([^)]*\)", "", prose, flags=re.DOTALL)
    allowed = {
        "20": "lines of the example",
        "4": "bits of the example",
        "3.10": "pyproject.toml",
        "2.6": "pyproject.toml",
        "3.11": "tested",
        "3.12": "tested",
        "2.13": "tested",
        "2.11": "tested",
        "2020": "the paper",
        "2.0": "the licence",
    }
    assert {word for word, _, _ in values(prose)} <= set(allowed)


def test_the_versions_of_the_readme_are_those_that_were_tested():
    tested = "\n".join(p.read_text() for p in RESULTS.rglob("environment.json"))
    tested += (ROOT / "constraints.txt").read_text() + (ROOT / "pyproject.toml").read_text()
    for version in ('"python": "3.11', '"python": "3.12', '"torch": "2.11', "torch==2.13"):
        assert version in tested
    for version in ('requires-python = ">=3.10"', '"torch>=2.6"'):
        assert version in tested


def test_the_figure_is_drawn(tmp_path):
    draw(RESULTS, tmp_path / "races.png")
    assert (tmp_path / "races.png").stat().st_size > 20_000
