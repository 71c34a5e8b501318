"""The report: what stands on the page, and how a browser shows it."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from lab.runs.walk import Walk, WalkConfig
from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.report.finished import read_run
from skewflow_lab.report.page import build, report
from skewflow_lab.runs.assets import to_svg
from skewflow_lab.runs.code import fingerprints, to_text
from skewflow_lab.runs.experiment import Figure
from skewflow_lab.runs.files import RunError
from skewflow_lab.runs.reproduce import execute

RESULTS = Path(__file__).parents[3] / "results"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder with one run, as it is committed: without cells and metrics."""
    monkeypatch.setitem(EXPERIMENTS, "walk", Walk())
    quiet = Console(quiet=True)
    folder = execute(Walk(), WalkConfig(), out=tmp_path / "runs", console=quiet)
    shutil.rmtree(folder / "cells")
    (folder / "metrics.jsonl").unlink()
    return tmp_path / "runs"


def test_the_page_holds_tables_figures_verdict_and_command(runs):
    page = build(runs)
    for text in ("A random walk", "6 walks ended.", "Where they ended.", "The ends."):
        assert text in page
    assert page.count("skewflow reproduce walk --preset quick") == 1
    assert page.count("<svg") == 1 and "currentColor" in page


def test_a_summary_at_the_top_has_each_claim_verdict_and_figure(runs):
    page = build(runs)
    top = page[page.index('<table class="summary">') : page.index("<main>")]
    texts = ("A random walk", "Nothing.", "6 walks ended.", "walk, quick", "recorded at ")
    for text in texts:
        assert text in top
    links = re.findall(r'href="#([^"]*)"', top)
    assert links == ["walk-1", "walk-1-walk"]
    for link in links:
        assert page.count(f'id="{link}"') == 1


def test_a_long_verdict_is_cut_at_a_sentence_in_the_summary_and_whole_in_its_section(
    runs, monkeypatch
):
    verdict = f"It holds (Sec. 3.2) at {'many ' * 30}sizes. It fails at {'some ' * 60}others."
    path = runs / "walk" / "summary.json"
    summary = json.loads(path.read_text()) | {"verdict": verdict}
    del summary["sha256"]
    path.write_text(json.dumps(summary))
    top, _, below = build(runs).partition("<main>")
    assert f"It holds (Sec. 3.2) at {'many ' * 30}sizes. …" in top and verdict not in top
    assert verdict in below


def test_each_section_says_when_it_was_recorded_and_whether_the_code_has_changed(runs):
    path = runs / "walk" / "environment.json"
    now = {"commit": "abc1234", "device": "an abacus", "code": to_text(fingerprints())}
    path.write_text(json.dumps([now, now | {"device": "", "commit": ""}]))
    assert build(runs).count("recorded at abc1234; the code is the same") == 2
    path.write_text(json.dumps([now, now | {"commit": "def5678", "code": "optim=0"}]))
    page = build(runs)
    assert page.count("recorded at abc1234 to def5678; the code has changed since") == 2
    assert "optim=0" not in page
    assert "walk, quick, an abacus" in page


def test_packages_that_were_not_installed_are_not_named(runs):
    path = runs / "walk" / "environment.json"
    path.write_text(json.dumps([{"torch": "2.13.0", "geoopt": "", "geotorch": "", "numpy": "2"}]))
    page = build(runs)
    assert "torch 2.13.0, numpy 2<" in page and "geoopt" not in page


def test_the_page_asks_for_nothing(runs):
    page = build(runs)
    # Names of XML vocabularies are never fetched; everything else would be.
    rest = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    rest = rest.replace('xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    rest = rest.replace('http-equiv="Content-Security-Policy" content="default-src', "")
    for word in ("http", "src=", "@import", "<script", 'rel="stylesheet'):
        assert word not in rest


def test_two_figures_on_a_page_share_no_names():
    draw = lambda canvas: canvas.subplots().plot([1, 2])  # noqa: E731
    names = [
        {part.split('"')[0] for part in to_svg(Figure(name, "", draw)).split(' id="')[1:]}
        for name in ("a", "b")
    ]
    assert names[0] and not names[0] & names[1]


def test_a_folder_without_runs_is_an_error(tmp_path):
    with pytest.raises(RunError, match="must hold a finished run.*skewflow reproduce NAME"):
        report(tmp_path, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name, text", [("folder", "Is a directory"), ("file/page.html", "")])
def test_a_page_that_cannot_be_written_is_an_error_without_resume(runs, tmp_path, name, text):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("old")
    with pytest.raises(RunError, match=f"cannot write .*{name}: {text}.*name a file") as error:
        report(runs, tmp_path / name)
    assert "--resume" not in str(error.value)
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize(
    "text, message",
    [
        ("{}", "'experiment' is a str: got None"),
        ("[]", r"a JSON object: got \[\]"),
        ('{"experiment": "haar"}', "'preset' is a str: got None"),
        ('{"experiment": []}', r"'experiment' is a str: got \[\]"),
    ],
)
def test_a_summary_that_no_run_wrote_is_an_error(tmp_path, text, message):
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(RunError, match=f"summary.json must be .*{message}. Restore it, or remove"):
        build(tmp_path)


def test_a_run_of_an_unknown_experiment_is_an_error(runs, monkeypatch):
    monkeypatch.delitem(EXPERIMENTS, "walk")
    with pytest.raises(RunError, match="'walk', which this version does not know"):
        build(runs)


def test_every_recorded_run_is_known_to_the_report():
    folders = [path.parent for path in RESULTS.rglob("summary.json")]
    assert {read_run(folder).folder for folder in folders} == set(folders) != set()


@pytest.fixture
def browser():
    """Chromium: Playwright's own, or the one that is installed, or a reason to skip."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs `make test-browser`")
    installed = os.environ.get("SKEWFLOW_BROWSER") or shutil.which("chromium")
    with playwright.sync_playwright() as p:
        try:
            browser = p.chromium.launch(executable_path=installed, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no browser here, see `make test-browser`: {error.message[:80]}")
        yield browser
        browser.close()


@pytest.mark.parametrize("name", ["table1", "rnn"])
def test_on_a_phone_figures_and_legends_are_whole(tmp_path, browser, name):
    path = tmp_path / "report.html"
    path.write_text(build(RESULTS / name))
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(path.as_uri())
    right = """selector => Math.max(...[...document.querySelectorAll(selector)]
        .map(e => e.getBoundingClientRect().right))"""
    page_is_wider = "document.documentElement.scrollWidth > window.innerWidth"
    assert 300 < page.evaluate(right, "figure svg") <= 390
    assert 100 < page.evaluate(right, "svg g[id*=legend]") <= 390
    assert not page.evaluate(page_is_wider)
    page.click("a.enlarge")
    assert page.evaluate(right, "figure svg") > 700
    assert not page.evaluate(page_is_wider)  # it scrolls in its own box
    page.click("a.reduce")
    assert page.evaluate(right, "figure svg") <= 390


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1100])
def test_a_browser_draws_the_page(runs, tmp_path, browser, width, scheme):
    path = tmp_path / "report.html"
    path.write_text(build(runs))
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    problems, requests = [], []
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.on("request", lambda r: requests.append(r.url))
    page.goto(path.as_uri())
    assert not problems
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    drawn = page.evaluate("""() => [...document.querySelectorAll('svg')].map(s => {
        const box = s.getBBox(); return Math.min(box.width, box.height, s.clientWidth) })""")
    assert drawn and min(drawn) > 100
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    # Text on its ground, also inside a figure: far apart in both schemes, and the right way round.
    ground, text, ink = page.evaluate("""() => {
        const light = c => c.match(/[0-9.]+/g).slice(0, 3).map(Number).reduce((a, b) => a + b) / 765
        const style = e => getComputedStyle(e)
        const glyph = [...document.querySelectorAll('svg g[id*=text] *')]
            .find(e => e.tagName == 'g' && e.style.fill)
        return [light(style(document.body).backgroundColor), light(style(document.body).color),
                light(style(glyph).fill)] }""")
    assert ground > 0.9 if scheme == "light" else ground < 0.15
    assert abs(ground - text) > 0.7 and abs(ground - ink) > 0.7
