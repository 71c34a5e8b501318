"""What `skewflow bench quality --resume` goes on with, and what it refuses."""

import json
import shutil
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from skewflow_lab.bench.quality import experiment as module
from skewflow_lab.bench.quality import race, search
from skewflow_lab.bench.quality.experiment import Quality
from skewflow_lab.bench.quality.matrix_problems import PCA
from skewflow_lab.bench.quality.search import trial
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


@pytest.mark.parametrize("cell", ["auto", "final"])
@pytest.mark.parametrize(
    "key, value, message",
    [
        ("seconds", 1.5, "made with seconds 0.02: got 1.5"),
        ("sizes", [9, 3], r"made with sizes \[7, 3\]: got \[9, 3\]"),
        ("floor", 1e-3, "made with floor 1e-06: got 0.001"),
        ("rules", 2, "made with rules 3: got 2"),
    ],
)
def test_cells_of_another_suite_are_refused(folder, cell, key, value, message):
    path = folder / "cells" / f"pca_{cell}.json"
    edit(path, put(key, value))
    error = refused(folder, message)
    assert str(path) in error and f"Remove all cells of that problem, {folder}/cells/pca_*" in error


@pytest.mark.parametrize("cell", ["auto", "final"])
def test_a_damaged_cell_is_refused_by_its_checksum(folder, cell):
    path = folder / "cells" / f"pca_{cell}.json"
    value = json.loads(path.read_text())
    path.write_text(json.dumps(value | {"start": 7.0}))
    refused(folder, "must be as it was written, with entries that match its checksum")


@pytest.mark.parametrize(
    "text", ["[]", "null", "{}", '{"runs": NaN}', "[" * 100_000, '{"a": 1e999']
)
def test_another_file_in_place_of_a_final_is_refused(folder, text):
    path = folder / "cells" / "pca_final.json"
    path.write_text(text)
    assert str(path) in refused(folder, "must be ")


def test_a_final_is_not_older_than_its_searches(folder):
    (folder / "cells" / "pca_auto.json").unlink()
    refused(folder, "pca_final.json must be made after the searches beside it")
    for path in (folder / "cells").glob("pca_*"):  # as the message says
        path.unlink()
    go(folder.parent)
    assert len(list((folder / "cells").iterdir())) == 3


def test_results_without_the_configuration_they_were_made_with_are_refused(folder):
    (folder / "config.json").unlink()
    for resume in (False, True):
        refused(folder, "config.json must exist, since .*cells holds results", resume=resume)


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
    refused(folder, rf"this one differs in {name} \('another' there, .*Continue on that machine")


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
        return trial(problem, method, setting, seconds, best)

    monkeypatch.setattr(search, "trial", stopping)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, resume=False)
    first, settings[:] = list(settings), []
    monkeypatch.setattr(module, "SUITE", {"pca": replace(ENTRY, tiny=sizes)})
    module._problem.cache_clear()
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path)
    assert settings == first if again else not set(settings) & set(first)
