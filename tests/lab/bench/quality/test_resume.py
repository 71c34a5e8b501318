"""What `skewflow bench quality --resume` goes on with, and what it refuses."""

import json
import shutil
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from skewflow_lab.bench.quality import experiment as module
from skewflow_lab.bench.quality import race
from skewflow_lab.bench.quality.experiment import Quality
from skewflow_lab.bench.quality.matrix_problems import PCA
from skewflow_lab.bench.quality.suite import Entry
from skewflow_lab.runs.files import RunError, write_checked
from skewflow_lab.runs.reproduce import execute

ENTRY = Entry(PCA, (), (), (7, 3), (1.0, 1.0))
CONFIG = replace(
    Quality.presets["quick"], problems=("pca",), methods=("auto", "landing"), seconds=0.02
)


def go(out, *, resume=True, console=None, **options):
    config = replace(CONFIG, **options)
    quiet = Console(quiet=True)
    return execute(Quality(), config, out=out, resume=resume, console=console or quiet)


@pytest.fixture(autouse=True)
def suite(monkeypatch):
    """A problem that takes no time."""
    monkeypatch.setattr(module, "SUITE", {"pca": ENTRY})
    monkeypatch.setattr(race, "PAUSE", 0.0)
    module._problem.cache_clear()
    yield
    module._problem.cache_clear()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SUITE", {"pca": ENTRY})
        patch.setattr(race, "PAUSE", 0.0)
        return go(tmp_path_factory.mktemp("made"), resume=False)


@pytest.fixture
def folder(made, tmp_path):
    """A copy of it, in which nothing is left to do."""
    return shutil.copytree(made, tmp_path / "quality")


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    if isinstance(value, dict):
        del value["sha256"]
        write_checked(path, value)
    else:
        path.write_text(json.dumps(value))


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(folder, message, **options):
    before = contents(folder)
    with pytest.raises(RunError, match=message) as error:
        go(folder.parent, **options)
    assert contents(folder) == before
    return str(error.value)


def test_a_finished_run_is_gone_on_with_and_gives_the_same_summary(folder, monkeypatch):
    monkeypatch.setattr(Quality, "run_cell", lambda *_: pytest.fail("nothing is left to do"))
    before = (folder / "summary.json").read_bytes()
    go(folder.parent)
    assert (folder / "summary.json").read_bytes() == before
    assert len(json.loads((folder / "environment.json").read_text())) == 2


def put(key, value):
    return lambda cell: cell.update({key: value})


def shorten_a_curve(cell):
    next(run for run in cell["runs"] if run["failure"] is None)["curve"].pop()


@pytest.mark.parametrize(
    "cell, change, message",
    [
        ("race", put("seconds", 1.5), "made with 'seconds' 0.02, as this run is: got 1.5"),
        ("auto", put("seconds", 1.5), "made with 'seconds' 0.02, as this run is: got 1.5"),
        ("race", put("sizes", [9, 3]), r"made with 'sizes' \[7, 3\], as this run is: got \[9, 3\]"),
        ("auto", lambda cell: cell.pop("sizes"), "made with 'sizes' .*: got None"),
        ("race", put("floor", 1e-3), "made with 'floor' 1e-06, as this run is: got 0.001"),
        (
            "race",
            put("shape", [9, 3]),
            r"the same 'shape' as pca_auto.json beside it, \[7, 3\]: got",
        ),
        ("race", put("optimum", None), "the same 'optimum' as .*: got None"),
        ("race", put("start", 7.0), "the same 'start' as .*: got 7.0"),
        ("race", lambda cell: cell["runs"].pop(), "whose heat 3 has (6|9|12) runs, by method"),
        ("race", lambda cell: cell["runs"].pop(0), "a race whose heat 1 has a run of auto at"),
        ("race", put("runs", []), "a race whose heat 1 has a run of auto at .*: got '0 runs, not"),
        ("race", shorten_a_curve, "the run of .* takes 0.02 seconds, is solved or fails"),
        ("race", lambda cell: cell["runs"][0].pop("heat"), "a run with an entry 'heat'"),
        ("auto", lambda cell: cell["trials"].pop(), "a search with a trial at exponent"),
        ("auto", lambda cell: cell["finalists"].pop(), "finalists are those of its trials"),
        ("auto", put("excuse", "not installed"), "with finalists, or with an excuse for none"),
        ("auto", put("gradient_ms", None), "a search with a number 'gradient_ms'"),
        ("auto", put("peak_bytes", 5), "a search with no number 'peak_bytes'"),
        (
            "auto",
            lambda cell: cell["trials"][2].update(lr=5e-324),
            "the learning rate .* at exponent 1, momentum 0: got 5e-324",
        ),
    ],
)
def test_cells_that_are_not_whole_or_of_another_run_are_refused(folder, cell, change, message):
    path = folder / "cells" / f"pca_{cell}.json"
    edit(path, change)
    told = refused(folder, message)
    assert str(path) in told and f"remove all cells of that problem, {folder}/cells/pca_*" in told


@pytest.mark.parametrize("value", [None, "", "NaN", -1, 1e300, True, [], {}, [None]])
@pytest.mark.parametrize("cell", ["auto", "race"])
def test_damage_that_is_still_json_is_refused(folder, cell, value):
    path = folder / "cells" / f"pca_{cell}.json"
    whole = json.loads(path.read_text())
    part = whole["runs"][0] if cell == "race" else whole["trials"][0]
    for where in (whole, part, part.get("curve", [part])[-1]):
        for key, right in list(where.items()):
            if value == right or (key, value) in PLAUSIBLE:
                continue
            where[key] = value
            path.write_text(json.dumps(whole))
            assert path.name in refused(folder, "must be .*: got"), (key, value)
            where[key] = right


PLAUSIBLE = [
    ("loss", None),  # of a trial that was lost
    ("loss", -1),
    ("failure", "NaN"),  # any text is a reason
]
"""What nothing else in the files speaks against."""


@pytest.mark.parametrize(
    "text", ["[]", "null", "{}", '{"runs": NaN}', "[" * 100_000, '{"a": 1e999']
)
def test_another_file_in_place_of_a_race_is_refused(folder, text):
    path = folder / "cells" / "pca_race.json"
    path.write_text(text)
    assert str(path) in refused(folder, "must be .*Restore it")


def test_a_race_is_not_older_than_its_searches(folder):
    (folder / "cells" / "pca_auto.json").unlink()
    refused(folder, "a race after all searches, and that of auto is not there")
    for path in (folder / "cells").glob("pca_*"):  # the way out that it names
        path.unlink()
    go(folder.parent)
    assert len(list((folder / "cells").iterdir())) == 3


def test_results_without_the_configuration_they_were_made_with_are_refused(folder):
    (folder / "config.json").unlink()
    for resume in (False, True):
        refused(folder, "config.json must be there, since .*cells holds results", resume=resume)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"seconds": 0.03}, r"seconds \(0.02 there, 0.03 here\)"),
        ({"size": "reduced"}, r"size \('tiny' there, 'reduced' here\)"),
        ({"device": "cuda"}, r"device \('cpu' there, 'cuda' here\)"),
    ],
)
def test_another_configuration_is_refused(folder, monkeypatch, options, message):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "a GPU")
    refused(folder, f"{message}.*Give its options, or write elsewhere with --out", **options)


@pytest.mark.parametrize("name", ["device", "threads"])
def test_seconds_of_another_machine_are_refused(folder, name):
    edit(folder / "environment.json", lambda starts: starts[0].update({name: "another"}))
    refused(folder, rf"this one differs in {name} \('another' there, .*Go on on such a machine")


def test_a_gpu_of_another_name_is_another_machine_and_other_threads_beside_it_are_not():
    assert Quality().machine(replace(CONFIG, device="cuda")) == ("device",)


def test_a_run_of_several_commits_says_so_at_every_later_start(folder, monkeypatch):
    for commit in ("another", "another"):
        monkeypatch.setattr("skewflow_lab.runs.environment.commit", lambda commit=commit: commit)
        text = StringIO()
        go(folder.parent, console=Console(file=text, width=200))
        assert "note: commit changed since an earlier start of this run" in text.getvalue()
    starts = json.loads((folder / "environment.json").read_text())
    assert len(starts) == 3 and starts[0]["commit"] != starts[1]["commit"] == "another"


@pytest.mark.parametrize("sizes, again", [((7, 3), False), ((8, 3), True)])
def test_trials_of_a_stopped_search_count_for_the_same_problem_only(
    tmp_path, monkeypatch, sizes, again
):
    settings = []

    def stopping(problem, method, setting, seconds, best):
        if len(settings) == 2:
            raise KeyboardInterrupt
        settings.append(setting)
        return race.trial(problem, method, setting, seconds, best)

    monkeypatch.setattr(module, "trial", stopping)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, resume=False)
    first, settings[:] = list(settings), []
    monkeypatch.setattr(module, "SUITE", {"pca": replace(ENTRY, tiny=sizes)})
    module._problem.cache_clear()
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path)
    assert settings == first if again else not set(settings) & set(first)
