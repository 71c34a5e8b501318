"""The command line: names, help, presets, errors."""

import re

import pytest

from lab.runs.walk import Walk
from skewflow_lab import cli
from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.runs import reproduce


def call(monkeypatch, capsys, *words):
    """Exit status, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.argv", ["skewflow", *map(str, words)])
    status = 0
    try:
        cli.main()
    except SystemExit as stop:
        status = stop.code or 0
    return status, *capsys.readouterr()


@pytest.fixture
def walk(monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "walk", Walk())


def test_an_unknown_name_lists_the_known_ones(monkeypatch, capsys):
    status, out, err = call(monkeypatch, capsys, "reproduce", "nosuch")
    assert status == 2
    for name in EXPERIMENTS:
        assert name in out + err


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_help_shows_the_defaults_of_the_preset(monkeypatch, capsys, name):
    status, quick, _ = call(monkeypatch, capsys, "reproduce", name, "--help")
    assert status == 0 and "--preset" in quick and "--resume" in quick
    status, paper, _ = call(monkeypatch, capsys, "reproduce", name, "--preset", "paper", "--help")
    assert status == 0 and paper != quick


@pytest.mark.parametrize(
    "name, time", [("mnist", "45 minutes on one core"), ("rnn", "needs a GPU")]
)
def test_help_tells_how_long_the_long_ones_take(monkeypatch, capsys, name, time):
    _, shown, _ = call(monkeypatch, capsys, "reproduce", name, "--help")
    assert time in " ".join(re.sub(r"[│|]", " ", shown).split())


def test_both_commands_are_listed(monkeypatch, capsys):
    status, out, _ = call(monkeypatch, capsys, "--help")
    assert status == 0 and "reproduce" in out and "report" in out


def test_a_run_prints_the_exact_path(monkeypatch, capsys, tmp_path, walk):
    words = ("reproduce", "walk", "--out", tmp_path, "--seeds", "5", "--preset=paper")
    status, out, _ = call(monkeypatch, capsys, *words)
    path = tmp_path / "walk" / "summary.json"
    assert status == 0 and f"written: {path}" in out and path.exists()
    assert "5 walks ended." in out  # five cells, one seed
    status, _, err = call(monkeypatch, capsys, *words)
    assert status == 1 and "already holds a finished run" in err


def test_an_interrupted_run_says_how_to_go_on(monkeypatch, capsys, tmp_path, walk):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Walk, "run_cell", stop)
        status, _, err = call(patch, capsys, "reproduce", "walk", "--out", tmp_path)
    assert status == 130 and "continue with --resume" in err
    status, _, _ = call(monkeypatch, capsys, "reproduce", "walk", "--out", tmp_path, "--resume")
    assert status == 0


@pytest.mark.parametrize(
    "words, text",
    [
        (("haar", "--num-samples", 0), "sizes >= 1: got (0,)"),
        (("haar", "--d", 1), "sum to d=1"),
        (("haar", "--block-sizes", 2, 2), "got 's=2' twice"),
        (("table1", "--rounds", 0), "--rounds must be at least 1: got 0."),
        (("table1", "--settings"), "at least one cell: got none."),
    ],
)
def test_settings_that_the_library_refuses_are_errors(monkeypatch, capsys, tmp_path, words, text):
    status, out, err = call(monkeypatch, capsys, "reproduce", *words, "--out", tmp_path)
    assert status == 1 and not out
    *_, message = err.partition("error: ")
    assert text in " ".join(message.split())


@pytest.mark.bad_input
@pytest.mark.parametrize("name, option", [("numerics", "--norms"), ("rho", "--lr")])
def test_numbers_that_are_not_finite_are_errors(monkeypatch, capsys, tmp_path, name, option):
    words = ("reproduce", name, "--out", tmp_path, option, "inf")
    status, _, err = call(monkeypatch, capsys, *words)
    assert status == 1 and f"{option} must be finite: got inf." in " ".join(err.split())
    assert not list(tmp_path.iterdir())


def test_a_bug_keeps_its_traceback(monkeypatch, capsys, tmp_path, walk):
    def fail(*_):
        raise ValueError("a bug")

    monkeypatch.setattr(Walk, "run_cell", fail)
    with pytest.raises(ValueError, match="a bug"):
        call(monkeypatch, capsys, "reproduce", "walk", "--out", tmp_path)


def test_a_preset_sets_every_default():
    assert reproduce._preset(["reproduce", "x", "--preset", "paper"]) == "paper"
    assert reproduce._preset(["reproduce", "x", "--preset=paper"]) == "paper"
    assert reproduce._preset(["reproduce", "x", "--d", "3"]) == "quick"


def test_the_demo_prints_every_verdict_and_writes_the_page(monkeypatch, capsys, tmp_path):
    names = list(EXPERIMENTS)
    for name in names:
        monkeypatch.delitem(EXPERIMENTS, name)
    monkeypatch.setitem(EXPERIMENTS, "walk", Walk())
    words = ("demo", "--out", tmp_path / "runs", "--page", tmp_path / "page.html")
    status, out, _ = call(monkeypatch, capsys, *words)
    assert status == 0 and "6 walks ended." in out
    assert f"written: {tmp_path / 'page.html'}" in out
    assert "6 walks ended." in (tmp_path / "page.html").read_text()
    (tmp_path / "runs" / "walk" / "config.json").write_text("{")
    status, _, err = call(monkeypatch, capsys, *words)
    assert status == 1 and "must be a readable JSON file" in err
