"""Run folders: what is written, and what happens when the writing stops."""

import errno
import json
import os
import pickle
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from lab.runs.walk import Walk, WalkConfig
from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.runs.files import RunError, read_object, write_bytes, write_json
from skewflow_lab.runs.reproduce import command_line, execute
from skewflow_lab.runs.run import Run

QUIET = Console(quiet=True)


def walk(out, config=None, **options):
    return execute(Walk(), config or WalkConfig(), out=out, console=QUIET, **options)


def results(folder):
    """Everything but clock times and the list of starts."""
    paths = [p for p in folder.rglob("*") if p.is_file()]
    clocks = ("timing.json", "environment.json", "tables/seconds.csv")
    names = {p.relative_to(folder) for p in paths} - {Path(name) for name in clocks}
    return {str(name): (folder / name).read_bytes() for name in sorted(names)}


def test_a_run_leaves_config_environment_metrics_timing_and_summary(tmp_path):
    folder = walk(tmp_path)
    assert folder == tmp_path / "walk"
    assert json.loads((folder / "config.json").read_text())["config"]["cells"] == 3
    (start,) = json.loads((folder / "environment.json").read_text())
    assert start["torch"] and start["commit"] is not None
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 3 * 2 * 4
    assert lines[0]["cell"] == "cell-0,seed-0"
    timing = json.loads((folder / "timing.json").read_text())
    assert timing["cell-0,seed-0"]["ms"] == 1.0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["verdict"] == "6 walks ended."
    assert summary["command"] == "skewflow reproduce walk --preset quick"
    assert not list(folder.rglob("*.state")) and not list(folder.rglob("*.tmp"))
    for name in ("tables/ends.csv", "figures/walk.svg", "figures/walk.png"):
        assert (folder / name).stat().st_size > 0


def test_two_runs_give_the_same_bytes(tmp_path):
    assert results(walk(tmp_path / "a")) == results(walk(tmp_path / "b"))


TINY_TABLE2 = {
    "d": 6,
    "num_sequences": 2,
    "step_sizes": [0.02, 0.1],
    "ranges": [10, 100],
    "smallest_steps": [0.02, 0.02],
    "chunk": 100,
}

TINY_MNIST = {"width": 8, "scales": [0.1], "num_images": 400, "batch": 32, "data": "digits"}


@pytest.mark.parametrize(
    "name, settings, seconds, seeds",
    [
        ("walk", {}, 0.15, [0, 1]),
        pytest.param("table2", TINY_TABLE2, 2.0, [2], marks=pytest.mark.slow),
        pytest.param("mnist", TINY_MNIST, 1.0, [3], marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_ten_times_ends_in_the_bytes_of_an_unbroken_one(
    tmp_path, name, settings, seconds, seeds
):
    experiment = {**EXPERIMENTS, "walk": Walk()}[name]
    listed = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items()}
    config = replace(experiment.presets["quick"], **listed)
    unbroken = results(execute(experiment, config, out=tmp_path / "unbroken", console=QUIET))
    script = Path(__file__).with_name("killed.py")
    words = [tmp_path, json.dumps(seeds), name, json.dumps(settings), str(seconds)]
    done = subprocess.run(
        [sys.executable, script, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    for seed, kills in zip(seeds, done.stdout.split(), strict=True):
        assert int(kills) >= 1
        assert results(tmp_path / str(seed) / name) == unbroken


def test_clock_times_of_an_unfinished_cell_are_kept_with_its_state(tmp_path):
    wanted = {"experiment": "walk", "config": {}, "command": "walk"}
    with Run.start(tmp_path, ["cell"], wanted, resume=False) as run:
        run.time("cell", "seconds an epoch", 3.0)
        run.save("cell", {"epoch": 2})
    with Run.start(tmp_path, ["cell"], wanted, resume=True) as again:
        assert again.load("cell") == {"epoch": 2}
        again.finish("cell", {})
    timing = json.loads((tmp_path / "timing.json").read_text())
    assert timing["cell"]["seconds an epoch"] == 3.0


def test_a_state_saved_on_a_gpu_goes_on_without_one(tmp_path, monkeypatch):
    run = Run(tmp_path, ["a"])
    monkeypatch.setattr("torch.serialization.location_tag", lambda _: "cuda:0")
    run.save("a", {"x": torch.arange(3.0)})
    monkeypatch.undo()
    assert b"cuda:0" in (tmp_path / "cells" / "a.state").read_bytes()
    assert run.load("a")["x"].tolist() == [0.0, 1.0, 2.0]


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    before = results(walk(tmp_path))
    folder = walk(tmp_path, resume=True)
    assert results(folder) == before
    assert len(json.loads((folder / "environment.json").read_text())) == 2


def test_a_changed_machine_is_named_on_resumption(tmp_path, monkeypatch):
    walk(tmp_path)
    monkeypatch.setattr(
        "skewflow_lab.runs.run.environment", lambda _: {"torch": "0", "device": "abacus"}
    )
    wanted = json.loads((tmp_path / "walk" / "config.json").read_text())
    with Run.start(tmp_path / "walk", Walk().cells(WalkConfig()), wanted, resume=True) as run:
        assert {"torch", "device", "commit"} <= set(run.changed)


def test_a_metric_line_that_was_cut_short_is_measured_again(tmp_path):
    unbroken = results(walk(tmp_path / "unbroken"))
    folder = walk(tmp_path / "cut")
    (folder / "cells" / "cell-2,seed-1.json").unlink()
    metrics = folder / "metrics.jsonl"
    metrics.write_text(metrics.read_text()[:-9])
    assert results(walk(tmp_path / "cut", resume=True)) == unbroken


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("config.json", b"[]", r"must be a JSON object: got \[\]. Restore it"),
        ("config.json", b"{}", "'experiment' is a str: got None. Restore it"),
        ("environment.json", b'{"torch": 1}', "must be a list of JSON objects"),
        ("environment.json", b'[{"torch": 1}]', "objects whose entries are text"),
        ("timing.json", b"[]", "must be a JSON object"),
        ("timing.json", b'{"cell-0,seed-0": null}', "must be a JSON object of objects: got None"),
        ("timing.json", b'{"cell-0,seed-0": {"ms": NaN}}', "NaN is not finite. Restore it"),
        ("timing.json", b'{"cell-0,seed-0": {"ms": 1e999}}', "1e999 is not finite. Restore it"),
        ("metrics.jsonl", b'{"cell": "a"}\ngarbage\n', r"line 2 is not\): got b'garbage"),
        ("metrics.jsonl", b"\xff\n", "line 1 is not"),
        ("metrics.jsonl", b"a\rb\n", "line 1 is not"),
        ("metrics.jsonl", b"[]\n", "line 1 is not"),
        ("metrics.jsonl", b'{"cell": []}\n', "line 1 is not"),
        ("cells/cell-1,seed-0.json", b"[]", r"must be a JSON object: got \[\]. Restore it, or rem"),
        ("cells/cell-2,seed-1.state", b"\x93\x1f\x00junk", "remove that file: its cell then"),
        ("cells/cell-2,seed-1.state", b"", "remove that file: its cell then"),
        ("cells/cell-2,seed-1.state", pickle.dumps(Path("x")), "remove that file: its cell then"),
        ("cells/cell-2,seed-1.state", pickle.dumps({"lines": 1}, 2), "remove that file: its cell"),
    ],
)
def test_a_damaged_file_is_an_error_that_changes_nothing(tmp_path, name, content, message):
    folder = walk(tmp_path)
    (folder / "cells" / "cell-2,seed-1.json").unlink()
    (folder / name).write_bytes(content)
    before = results(folder)
    with pytest.raises(RunError, match=message) as error:
        walk(tmp_path, resume=True)
    assert str(folder / name) in str(error.value)
    assert results(folder) == before


def flips(data, number, seed=0):
    """Copies of `data` with one bit changed, at places drawn at random."""
    rng = random.Random(seed)
    for at in rng.sample(range(len(data)), number):
        yield data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


@pytest.mark.parametrize("keep", [False, True])
def test_no_damaged_state_goes_unnoticed(tmp_path, keep):
    run = Run(tmp_path, ["a"])
    value = {"x": torch.arange(100.0), "rows": [{"loss": 0.5}] * 9}
    (run.keep if keep else run.save)("a", value)
    (path,) = tmp_path.rglob("a.*")
    for data in flips(path.read_bytes(), 150):
        path.write_bytes(data)
        with pytest.raises(RunError, match="must be what skewflow saved.*Restore it, or remove"):
            (run.kept if keep else run.load)("a")


@pytest.mark.parametrize("name", ["cells/cell-1,seed-0.json", "summary.json", "timing.json"])
def test_no_damaged_number_in_a_result_goes_unnoticed(tmp_path, name):
    path = walk(tmp_path) / name
    entries = {"summary.json": {"results": dict}}.get(name, {})
    data, right = path.read_bytes(), read_object(path, **entries)
    noticed = 0
    for damaged_data in flips(data, min(170, len(data))):
        path.write_bytes(damaged_data)
        try:  # a blank may be another one, and the checksum may be one no more
            assert right.items() <= read_object(path, **entries).items()
        except RunError as error:
            noticed += str(path) in str(error)
    assert noticed > 80
    damaged_data = re.sub(rb"\d\.\d", b"7.7", data, count=1)
    assert damaged_data != data
    path.write_bytes(damaged_data)
    with pytest.raises(RunError, match="as it was written, with entries that match its checksum"):
        read_object(path)


def test_a_cell_without_its_checksum_is_refused(tmp_path):
    path = walk(tmp_path) / "cells" / "cell-1,seed-0.json"
    cell = json.loads(path.read_text())
    del cell["sha256"]
    path.write_text(json.dumps(cell))
    with pytest.raises(RunError, match="'sha256' is a str: got None. Restore it, or remove that"):
        walk(tmp_path, resume=True)


def test_an_entry_that_a_file_lacks_is_an_error_that_names_both(tmp_path):
    run = Run(tmp_path, ["a"])
    run.save("a", {"chunk": 1})
    with pytest.raises(RunError, match="a.state must be .* with an entry 'x': got 'chunk'. Rest"):
        run.load("a")["x"]
    run.finish("a", {"norm": 1.0})
    with pytest.raises(RunError, match="a.json must be .* with an entry 'x': got 'norm'. Restore"):
        run.result("a")["x"]


LOCKS = """
import fcntl, os, signal, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("locked", flush=True)
signal.pause()
"""


def test_two_processes_never_work_in_one_folder_and_a_killed_one_leaves_no_lock(tmp_path):
    unbroken = results(walk(tmp_path / "unbroken"))
    folder = walk(tmp_path)
    (folder / "cells" / "cell-2,seed-1.json").unlink()
    before = results(folder)
    with subprocess.Popen([sys.executable, "-c", LOCKS, folder], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout.readline() == b"locked\n"
            for resume in (True, False):
                with pytest.raises(RunError, match="one process at a time: another one uses it"):
                    walk(tmp_path, resume=resume)
            assert results(folder) == before
        finally:
            other.kill()
    assert results(walk(tmp_path, resume=True)) == unbroken


def test_a_run_keeps_others_out_until_it_ends(tmp_path):
    wanted = {"experiment": "walk", "config": {}, "command": "walk"}
    first, second, third = (
        Run.start(tmp_path, ["cell"], wanted, resume=resume) for resume in (False, True, True)
    )
    with first, pytest.raises(RunError, match="another one uses it"), second:
        pass
    with third:
        pass


def test_a_disk_without_locks_can_be_used(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", unsupported)
    assert walk(tmp_path).exists()


@pytest.mark.parametrize("finished", [True, False])
def test_resuming_on_a_read_only_disk_is_a_clear_error(tmp_path, monkeypatch, finished):
    folder = walk(tmp_path)
    if not finished:
        (folder / "cells" / "cell-2,seed-1.json").unlink()
    before, real = results(folder), open

    def read_only(name, *_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)

    def reads(file, mode="r", *args, **options):
        return real(file, mode, *args, **options) if mode in ("r", "rb") else read_only(file)

    monkeypatch.setattr("os.unlink", read_only)  # also of a file that is not there
    monkeypatch.setattr("builtins.open", reads)
    with pytest.raises(RunError, match="cannot write .*Read-only file system.*with --out"):
        walk(tmp_path, resume=True)
    monkeypatch.undo()
    assert results(folder) == before


def test_without_its_damaged_state_a_cell_starts_again(tmp_path):
    unbroken = results(walk(tmp_path / "unbroken"))
    folder = walk(tmp_path / "damaged")
    (folder / "cells" / "cell-2,seed-1.json").unlink()
    state = folder / "cells" / "cell-2,seed-1.state"
    state.write_bytes(b"junk")
    with pytest.raises(RunError, match="remove that file"):
        walk(tmp_path / "damaged", resume=True)
    state.unlink()
    assert results(walk(tmp_path / "damaged", resume=True)) == unbroken


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path):
    walk(tmp_path)
    with pytest.raises(RunError, match="already holds a finished run. Continue with --resume"):
        walk(tmp_path)


def test_resuming_with_another_configuration_names_the_fields(tmp_path):
    folder = walk(tmp_path)
    before = results(folder)
    with pytest.raises(RunError, match=r"cells \(3 there, 4 here\), seeds \(\[0, 1\] there") as e:
        walk(tmp_path, WalkConfig(cells=4, seeds=(0,)), resume=True)
    assert "skewflow reproduce walk --preset quick" in str(e.value)
    assert results(folder) == before


def test_the_command_line_holds_what_differs_from_the_preset():
    config = WalkConfig(cells=5, seeds=(3, 4))
    expected = "skewflow reproduce walk --preset paper --seeds 3 4"
    assert command_line(Walk(), config, "paper") == expected


@pytest.mark.parametrize("out", ["/proc/nowhere", "a file"])
def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path, out):
    if out == "a file":
        out = tmp_path / "file"
        out.write_text("")
    with pytest.raises(RunError, match="cannot write .*choose a folder that can be written"):
        walk(Path(out))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_earlier_results_whole(tmp_path, monkeypatch, call):
    unbroken = results(walk(tmp_path / "unbroken"))
    true, count = getattr(os, call), 0

    def full(*args):
        nonlocal count
        count += 1
        if count > 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return true(*args)

    monkeypatch.setattr(os, call, full)
    with pytest.raises(RunError, match="No space left on device.*--resume"):
        walk(tmp_path / "full")
    monkeypatch.undo()
    folder = tmp_path / "full" / "walk"
    for path in (folder / "cells").glob("*.json"):
        assert path.read_bytes() == unbroken[f"cells/{path.name}"]
    assert not list(folder.rglob("*.tmp"))
    assert results(walk(tmp_path / "full", resume=True)) == unbroken


def test_a_failed_write_keeps_the_old_bytes(tmp_path, monkeypatch):
    path = tmp_path / "x"
    write_bytes(path, b"old")

    def fail(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(RunError):
        write_bytes(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["x"] and path.read_bytes() == b"old"


def test_nan_is_refused_in_json(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "x.json", {"loss": float("nan")})


def test_cells_need_names_that_are_files(tmp_path):
    with pytest.raises(ValueError, match="becomes a file's name: got 'a/b'"):
        Run(tmp_path, ["a/b"])
    with pytest.raises(RunError, match="different names: got 'a' twice. Give each value"):
        Run(tmp_path, ["a", "a"])
    with pytest.raises(ValueError, match="'c' is not a cell"):
        Run(tmp_path, ["a", "b"]).load("c")
