"""Workers of a real Ray: the bits of local processes, also when Ray's processes are killed."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from cluster.objectives import Signed, Slow
from es.objectives import Fatal, Hanging, Mortal, Unloadable, cracked
from es.test_strategy import advance, pair
from es.test_workers import assert_same, simple
from skewflow.errors import WorkerError
from skewflow_lab.rl.ray_workers import RayWorkers
from skewflow_lab.rl.tasks import missing_simulators

ray = pytest.importorskip("ray", reason="needs `make test-ray`")
needs_simulators = pytest.mark.skipif(bool(missing_simulators()), reason="needs the extra `rl`")
GENERATIONS = 2


@pytest.fixture(scope="module")
def cluster():
    """Two processes, that find the objectives of the tests; it ends with them in any case."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=2**28)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def alone():
    strategy = pair()
    return strategy, advance(strategy, GENERATIONS)


def train(objective, meanwhile=lambda done: None, **options):
    strategy = pair()
    with RayWorkers(objective, **options) as workers:
        records = [
            strategy.tell(workers.evaluate(strategy.ask(), on_task=meanwhile))
            for _ in range(GENERATIONS)
        ]
    return strategy, records


def pids(folder):
    return [int(path.name) for path in folder.iterdir()]


def test_ray_gives_the_bits_of_one_process(cluster, alone, tmp_path):
    assert_same(alone, train(Signed(folder=tmp_path)))
    assert len(pids(tmp_path)) == 2 and os.getpid() not in pids(tmp_path)


def test_a_worker_killed_from_outside_changes_nothing(cluster, alone, tmp_path):
    killed = []

    def kill(done):
        if done == 3 and not killed:
            killed.append(pids(tmp_path)[0])
            os.kill(killed[0], signal.SIGKILL)

    assert_same(alone, train(Signed(folder=tmp_path), kill))
    assert killed


def test_tasks_that_take_their_workers_with_them_are_done_again(cluster, alone, tmp_path):
    assert_same(alone, train(Mortal(folder=tmp_path)))
    assert list(tmp_path.iterdir())


def test_a_worker_that_hangs_is_ended_and_its_task_done_again(cluster, alone, tmp_path):
    assert_same(alone, train(Hanging(folder=tmp_path), patience=3.0))
    assert list(tmp_path.iterdir())


def test_a_crash_loop_ends_in_an_error_and_nothing_learned_is_lost(cluster):
    strategy = simple()
    with RayWorkers(Fatal()) as workers:
        strategy.tell(workers.evaluate(strategy.ask()))
        learned = strategy.params["x"].clone()
        with pytest.raises(WorkerError, match=r"3 workers died .* of generation 1"):
            workers.evaluate(strategy.ask())
    assert torch.equal(strategy.params["x"], learned) and strategy.generation == 1


@pytest.mark.parametrize(
    "objective, error, text",
    [(cracked, LookupError, "nothing here"), (Unloadable(), ImportError, "no module named simul")],
    ids=["raises", "import"],
)
def test_an_error_in_a_worker_is_raised_here(cluster, objective, error, text):
    with RayWorkers(objective) as workers, pytest.raises(error, match=text) as caught:
        workers.evaluate(simple().ask())
    assert error.__name__ in str(caught.value.__cause__)  # the worker's own traceback


def test_an_interrupt_leaves_workers_that_can_be_used(cluster):
    def interrupt(done):
        raise KeyboardInterrupt

    generation = simple().ask()
    with RayWorkers(Slow()) as workers:
        with pytest.raises(KeyboardInterrupt):
            workers.evaluate(generation, on_task=interrupt)
        assert len(workers.evaluate(generation)) == 6


def learn(out, *words, **environment):
    """The files of a small run on the command line, in a process of its own."""
    command = [sys.executable, "-m", "skewflow_lab.cli", "reproduce", "rl", "--preset", "ci"]
    command += ["--backend", "processes", "--trials", "0", "--score-every", "1"]
    command += ["--generations", "2", "--num-directions", "4", "--out", str(out), *words]
    env = {**os.environ, **environment}
    found = subprocess.run(command, capture_output=True, text=True, env=env)
    assert found.returncode == 0, found.stderr
    return [(out / "rl" / name).read_bytes() for name in ("summary.json", "metrics.jsonl")]


@needs_simulators
def test_the_curve_is_that_of_local_processes(cluster, tmp_path):
    here = learn(tmp_path / "local", "--workers", "1")
    address = ray.get_runtime_context().gcs_address
    assert learn(tmp_path / "joined", "--workers", "ray", "--address", address) == here


@needs_simulators
def test_a_ray_that_was_started_here_ends_with_the_run(tmp_path):
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # sockets need short names
        learn(tmp_path, "--workers", "ray", RAY_TMPDIR=folder)
        assert list(Path(folder).rglob("raylet.out"))  # it was there
        assert not [line for line in commands() if folder in line]


def commands():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # ended meanwhile
            yield path.read_text()


def test_an_address_without_a_cluster_is_an_error():
    code = (
        "from skewflow_lab.rl.rollout import Rollout\n"
        "from skewflow_lab.rl.ray_workers import RayWorkers\n"
        "RayWorkers(Rollout('HalfCheetah'), address='127.0.0.1:1')"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 1
    assert "must be that of a running Ray cluster: got '127.0.0.1:1'" in found.stderr
