"""Cells in several processes: the same bytes as one after the other, whatever dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from lab.runs.test_run import results
from lab.runs.walk import Dying, Failing, Walk, WalkConfig, Walks
from skewflow_lab.runs.files import RunError
from skewflow_lab.runs.reproduce import execute

QUIET = Console(quiet=True)


def test_two_processes_leave_the_bytes_of_one(tmp_path):
    folders = [
        execute(Walks(), WalkConfig(), out=tmp_path / str(n), processes=n, console=QUIET)
        for n in (1, 2)
    ]
    assert results(folders[0]) == results(folders[1])
    timing = json.loads((folders[1] / "timing.json").read_text())
    for cell in Walks().cells(WalkConfig()):
        assert timing[cell]["ms"] == 1.0 and timing[cell]["seconds"] > 0


@pytest.mark.parametrize(
    "experiment, said, then", [(Failing, "this cell fails", 1), (Dying, "one of 2 died", 2)]
)
def test_a_run_whose_process_fails_goes_on_to_the_same_bytes(tmp_path, experiment, said, then):
    expected = results(execute(Walks(), WalkConfig(), out=tmp_path / "whole", console=QUIET))
    with pytest.raises(RunError, match=said):
        execute(experiment(), WalkConfig(), out=tmp_path, processes=2, console=QUIET)
    options = {"out": tmp_path, "processes": then, "console": QUIET}
    folder = execute(Walks(), WalkConfig(), resume=True, **options)
    assert results(folder) == expected


def test_processes_end_with_a_parent_that_is_killed(tmp_path):
    code = (
        "from pathlib import Path; from rich.console import Console\n"
        "from lab.runs.walk import Slow, WalkConfig; "
        "from skewflow_lab.runs.reproduce import execute\n"
        f"execute(Slow(), WalkConfig(chunks=200), out=Path({str(tmp_path)!r}), processes=2, "
        "console=Console(quiet=True))"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    pids = []
    while len(pids) < 2:
        assert parent.poll() is None
        time.sleep(0.05)
        pids = [int(p.read_text() or 0) for p in (tmp_path / "walk").glob("*.pid")]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while any(map(_runs, pids)):  # a worker that went on would let this test run out of time
        time.sleep(0.05)


def _runs(pid):
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.bad_input
def test_experiments_whose_cells_depend_on_each_other_take_one_process(tmp_path):
    with pytest.raises(RunError, match="must be 1 for walk: got 2"):
        execute(Walk(), WalkConfig(), out=tmp_path, processes=2, console=QUIET)
    with pytest.raises(RunError, match="must be at least 1: got 0"):
        execute(Walks(), WalkConfig(), out=tmp_path, processes=0, console=QUIET)
    assert not list(tmp_path.iterdir())
