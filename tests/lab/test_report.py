"""The report: what stands on the page, and how a browser shows it."""

import os
import shutil

import pytest
from rich.console import Console

from lab.walk import Walk, WalkConfig
from skewflow.lab.experiment import Figure
from skewflow.lab.experiments import EXPERIMENTS
from skewflow.lab.files import RunError
from skewflow.lab.report.assets import to_svg
from skewflow.lab.report.command import build, report
from skewflow.lab.reproduce import execute


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
    assert page.count("skewflow reproduce walk --preset quick") == 2  # one table, one figure
    assert page.count("<svg") == 1 and "currentColor" in page


def test_the_page_asks_for_nothing(runs):
    page = build(runs)
    # Names of XML vocabularies are never fetched; everything else would be.
    rest = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    rest = rest.replace('xmlns:xlink="http://www.w3.org/1999/xlink"', "")
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1100])
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
