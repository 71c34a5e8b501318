"""Worker processes: the same bits whatever their number, whichever die; errors that say where."""

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from threading import Barrier, BrokenBarrierError, Thread, current_thread
from time import sleep

import pytest
import torch
from torch import nn

from es import objectives
from es.test_strategy import advance, pair
from skewflow.errors import NonFiniteReturnError, WorkerError
from skewflow.es import EvolutionStrategy, InProcess, LocalWorkers
from skewflow.es._messages import picklable

GENERATIONS = 2
PATIENCE = 1.0
"""Seconds. A task takes milliseconds; one that takes longer on a busy day is done again."""


def train(objective, num_workers, **options):
    strategy = pair()
    with LocalWorkers(objective, num_workers, **options) as workers:
        records = [strategy.tell(workers.evaluate(strategy.ask())) for _ in range(GENERATIONS)]
    return strategy, records


@pytest.fixture(scope="module")
def alone():
    strategy = pair()
    return strategy, advance(strategy, GENERATIONS)


def assert_same(one, other):
    assert one[1] == other[1]
    for name, p in one[0].params.items():
        assert torch.equal(p, other[0].params[name])
    assert (one[0].moments.squares == other[0].moments.squares).all()


def test_the_bits_do_not_depend_on_the_number_of_workers(alone):
    assert_same(alone, train(objectives.Noisy(), 3))


def test_the_bits_do_not_depend_on_the_threads_of_this_process(alone):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        strategy = pair()
        assert_same(alone, (strategy, advance(strategy, GENERATIONS)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_tasks_that_take_their_workers_with_them_are_done_again(alone, tmp_path):
    assert_same(alone, train(objectives.Mortal(folder=tmp_path), 1))
    assert list(tmp_path.iterdir())


def test_workers_that_die_or_stop_in_the_middle_or_between_generations_are_replaced(alone):
    strategy, records, sent = pair(), [], {}
    with LocalWorkers(objectives.Noisy(), 2, patience=PATIENCE) as workers:

        def send(number):
            sent[number] = workers.pids[0]
            os.kill(sent[number], number)

        def meanwhile(done):
            if done == 3 and signal.SIGTERM not in sent:
                send(signal.SIGTERM)
            elif done == 6 and signal.SIGSTOP not in sent:
                send(signal.SIGSTOP)

        for _ in range(GENERATIONS):
            outcomes = workers.evaluate(strategy.ask(), on_task=meanwhile)
            records.append(strategy.tell(outcomes))
            send(signal.SIGKILL)
    assert_same(alone, (strategy, records))
    with pytest.raises(ProcessLookupError):
        os.kill(sent[signal.SIGSTOP], 0)


def test_a_worker_that_hangs_is_killed_and_its_task_done_again(alone, tmp_path):
    assert_same(alone, train(objectives.Hanging(folder=tmp_path), 2, patience=PATIENCE))
    assert list(tmp_path.iterdir())


@pytest.fixture
def two_deaths(monkeypatch):
    """The second death is one too many, where users have three: processes take a second each."""
    monkeypatch.setattr("skewflow.es.workers.MAX_DEATHS", 2)


def test_a_task_that_always_hangs_ends_in_an_error(two_deaths):
    with LocalWorkers(objectives.endless, 1, patience=PATIENCE) as workers:
        with pytest.raises(WorkerError, match=f"killed after {PATIENCE:g} seconds without an"):
            workers.evaluate(simple().ask())
        assert not workers.pids


def simple(start=1.0):
    x = nn.Parameter(torch.full((3,), start))
    sgd = torch.optim.SGD([x], lr=0.1)
    return EvolutionStrategy({"x": x}, [sgd], num_directions=3, sigma=0.1)


def test_workers_have_one_thread_persist_and_end_with_the_context_or_an_interrupt():
    before = dict(os.environ)
    generation = simple().ask()

    def interrupt(done):
        raise KeyboardInterrupt

    with LocalWorkers(objectives.threads, 1) as workers:
        assert not workers.pids
        assert [o.value for o in workers.evaluate(generation)] == [41.0] * 6
        assert dict(os.environ) == before
        pids = workers.pids
        workers.evaluate(generation, generation.tasks[:1])
        assert workers.pids == pids and len(pids) == 1
        with pytest.raises(KeyboardInterrupt):
            workers.evaluate(generation, on_task=interrupt)
        assert not workers.pids
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


STUCK = """
import os, sys
from pathlib import Path
from es.objectives import Stuck
from es.test_workers import simple
from skewflow.es import LocalWorkers

folder, keeps_lock = Path(sys.argv[1]), sys.argv[2] == "True"
workers = LocalWorkers(Stuck(folder, keeps_lock), 1)
start = workers._workers[0].start

def start_and_fork(*args):
    start(*args)
    if os.fork() == 0:  # it has all open files of its parent, and outlives it
        sys.stdin.read()
        os._exit(0)

if not keeps_lock:
    workers._workers[0].start = start_and_fork
workers.evaluate(simple().ask())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="waits for the end of a grandchild")
@pytest.mark.parametrize(
    "number, keeps_lock", [(signal.SIGTERM, False), (signal.SIGKILL, True)], ids=["term", "kill"]
)
def test_workers_in_an_endless_evaluation_end_when_their_parent_is_killed(
    tmp_path, number, keeps_lock
):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", STUCK, str(tmp_path), str(keeps_lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=env) as parent:
        while not list(tmp_path.iterdir()):
            assert parent.poll() is None
            sleep(0.05)
        (path,) = tmp_path.iterdir()
        worker = os.pidfd_open(int(path.name))
        try:
            parent.send_signal(number)
            assert select.select([worker], [], [], 20)[0]  # at its end it can be read
        finally:
            parent.kill()
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(worker, signal.SIGKILL)
            os.close(worker)


def test_a_thread_that_has_started_workers_may_end_before_them():
    generation = simple().ask()
    with LocalWorkers(objectives.sphere, 1) as workers:
        thread = Thread(target=workers.evaluate, args=(generation,))
        thread.start()
        thread.join()
        pids = workers.pids
        workers.evaluate(generation)
        assert workers.pids == pids


def test_threads_that_start_workers_leave_the_environment_as_it_was(monkeypatch):
    """Without a lock the second one enters before the first one leaves, and leaves after it."""
    generation, found = simple().ask(), ([], [])
    before, both, start = dict(os.environ), Barrier(2), SpawnProcess.start
    entered, numba = [], []

    def meet(process):
        entered.append(current_thread())
        numba.append(os.environ.get("NUMBA_NUM_THREADS"))
        with suppress(BrokenBarrierError):
            both.wait(timeout=0.5)
        if current_thread() is not entered[0]:
            entered[0].join()
        start(process)

    def evaluate(outcomes):
        with LocalWorkers(objectives.threads, 1) as workers:
            outcomes += workers.evaluate(generation, generation.tasks[:1])

    monkeypatch.setattr(SpawnProcess, "start", meet)
    threads = [Thread(target=evaluate, args=(outcomes,)) for outcomes in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dict(os.environ) == before
    # While it starts workers, too: numba may read this one at any time.
    assert numba == [before.get("NUMBA_NUM_THREADS")] * 2
    assert [o.value for outcomes in found for o in outcomes] == [41.0] * 2


def test_a_worker_of_a_script_that_has_imported_numba_uses_one_thread_of_it():
    code = "import numba; from skewflow.es._worker import use_one_thread as f; f()"
    env = {**os.environ, "NUMBA_NUM_THREADS": "2"}
    run = subprocess.run(
        [sys.executable, "-c", f"{code}; assert numba.get_num_threads() == 1"], env=env
    )
    assert run.returncode == 0


@pytest.mark.bad_input
def test_workers_at_work_refuse_another_generation():
    generation = simple().ask()
    with LocalWorkers(objectives.sphere, 1) as workers:
        with pytest.raises(WorkerError, match="one generation at a time: .* for each thread"):
            workers.evaluate(generation, on_task=lambda done: workers.evaluate(generation))
        assert len(workers.evaluate(generation)) == 6


def test_a_second_interrupt_leaves_no_old_answer_to_the_next_generation(monkeypatch):
    def interrupt(*args):
        if any(worker.task for worker in workers._workers):
            raise KeyboardInterrupt
        return wait(*args)

    old, new = simple().ask(), simple(start=5.0).ask()
    with LocalWorkers(objectives.sphere, 1) as workers:
        with monkeypatch.context() as patch:
            patch.setattr("skewflow.es.workers.wait", interrupt)
            patch.setattr(workers, "close", interrupt)
            with pytest.raises(KeyboardInterrupt):
                workers.evaluate(old, old.tasks[-1:])
        found = workers.evaluate(new)
    expected = InProcess(objectives.sphere).evaluate(new)
    assert [o.value for o in found] == [o.value for o in expected]


def test_an_interrupt_while_a_worker_starts_ends_the_others(monkeypatch):
    start, started = SpawnProcess.start, []

    def interrupted(process):
        if started:
            raise KeyboardInterrupt
        start(process)
        started.append(process.pid)

    monkeypatch.setattr(SpawnProcess, "start", interrupted)
    with LocalWorkers(objectives.sphere, 2) as workers:
        with pytest.raises(KeyboardInterrupt):
            workers.evaluate(simple().ask())
        assert not workers.pids
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)


def test_a_crash_loop_ends_in_an_error_and_nothing_learned_is_lost():
    strategy = simple()
    with LocalWorkers(objectives.Fatal(), 1) as workers:
        strategy.tell(workers.evaluate(strategy.ask()))
        learned = strategy.params["x"].clone()
        with pytest.raises(WorkerError, match=r"3 workers died \(signal 9\) at .* generation 1"):
            workers.evaluate(strategy.ask())
        assert not workers.pids
    assert torch.equal(strategy.params["x"], learned) and strategy.generation == 1
    with InProcess(objectives.sphere) as here:  # and it can go on
        assert strategy.tell(here.evaluate(strategy.ask())).generation == 1


def test_closing_resets_the_count_of_deaths_before_a_worker_is_ready(tmp_path, two_deaths):
    generation = simple().ask()
    with LocalWorkers(objectives.Newborn(tmp_path, fatal=(1, 2, 3)), 1) as workers:
        with pytest.raises(WorkerError, match="2 in a row died before they were"):
            workers.evaluate(generation)
        assert len(workers.evaluate(generation)) == 6  # the third dies, the fourth does not


def test_the_death_of_an_idle_worker_is_not_counted(tmp_path, two_deaths):
    generation = simple().ask()

    def kill_the_idle(done):
        if done == 1:
            (idle,) = [worker for worker in workers._workers if worker.task is None]
            os.kill(idle.process.pid, signal.SIGKILL)

    with LocalWorkers(objectives.Meeting(tmp_path, fatal=(3,)), 2) as workers:
        assert len(workers.evaluate(generation, generation.tasks[:2], kill_the_idle)) == 2


WRONG = [
    (objectives.nan, NonFiniteReturnError, "got nan at plus direction 0 of generation 0, seed"),
    (objectives.no_number, TypeError, r"one number: got 'a tensor of shape \(2,\)'. Sum"),
    (objectives.Bare(), TypeError, "evaluate` must return an Outcome: got float at plus direction"),
    (objectives.cracked, LookupError, "nothing here"),
]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "objective, error, text", WRONG, ids=["nan", "no number", "no outcome", "raises"]
)
def test_an_error_of_the_objective_is_raised(objective, error, text):
    with pytest.raises(error, match=text):
        InProcess(objective).evaluate(simple().ask())


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "objective, error, text",
    [
        WRONG[-1],
        (objectives.Secretive(), Exception, "Can't pickle"),
        (objectives.leaves, RuntimeError, r"must return a number: it called sys.exit\(3\)"),
        (objectives.Unloadable(), ImportError, "no module named simulator"),
        (
            objectives.DeadOnArrival(),
            WorkerError,
            r"3 in a row died before they were \(exit code 3\)",
        ),
    ],
    ids=["raises", "cannot be sent", "leaves", "import", "dead"],
)
def test_an_error_in_a_worker_is_raised_here(objective, error, text):
    with LocalWorkers(objective, 1) as workers, pytest.raises(error, match=text) as caught:
        workers.evaluate(simple().ask())
    if error is LookupError:
        assert "in cracked" in str(caught.value.__cause__)  # the worker's own traceback


def test_an_error_that_cannot_be_pickled_travels_as_its_text():
    error, text = picklable(objectives.UnpicklableError("a", "b"))
    assert isinstance(error, RuntimeError) and str(error) == "UnpicklableError: a"
    assert "UnpicklableError" in text
    same, _ = picklable(NonFiniteReturnError("c"))
    assert isinstance(same, NonFiniteReturnError)


@pytest.mark.bad_input
def test_what_makes_no_sense_is_refused_at_once():
    with pytest.raises(ValueError, match="`num_workers` must be a whole number of at least 1"):
        LocalWorkers(objectives.sphere, 0)
    with pytest.raises(ValueError, match="`patience` must be above 0 seconds: got 0"):
        LocalWorkers(objectives.sphere, 1, patience=0)
    with pytest.raises(TypeError, match="a function of the parameters or an Objective: got int"):
        InProcess(3)
