"""Worker processes: the same bits whatever their number, whichever die; errors that say where."""

import os
import signal

import pytest
import torch
from torch import nn

from es import objectives
from es.test_strategy import advance, pair
from skewflow.errors import NonFiniteReturnError, WorkerError
from skewflow.es import EvolutionStrategy, InProcess, LocalWorkers
from skewflow.es._worker import portable

GENERATIONS = 2
PATIENCE = 1.0
"""Seconds. A task takes milliseconds; one that takes longer on a busy day is done again."""


def train(objective, num_workers, meanwhile=lambda workers: None, **options):
    strategy = pair()
    with LocalWorkers(objective, num_workers, **options) as workers:
        meanwhile(workers)
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


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_the_bits_do_not_depend_on_the_number_of_workers(alone, num_workers):
    assert_same(alone, train(objectives.Noisy(), num_workers))


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


def test_a_worker_killed_from_outside_in_the_middle_is_replaced(alone):
    killed = []

    def kill_soon(workers):
        def kill(done):
            if done == 3 and not killed:
                killed.append(workers.pids[0])
                os.kill(killed[0], signal.SIGKILL)

        evaluate = workers.evaluate
        workers.evaluate = lambda generation: evaluate(generation, on_task=kill)

    assert_same(alone, train(objectives.Noisy(), 2, kill_soon))
    assert killed


def test_workers_that_die_between_generations_are_replaced(alone):
    strategy = pair()
    records = []
    with LocalWorkers(objectives.Noisy(), 1) as workers:
        for _ in range(GENERATIONS):
            records.append(strategy.tell(workers.evaluate(strategy.ask())))
            os.kill(*workers.pids, signal.SIGKILL)
    assert_same(alone, (strategy, records))


def test_a_worker_that_hangs_is_killed_and_its_task_done_again(alone, tmp_path):
    assert_same(alone, train(objectives.Hanging(folder=tmp_path), 2, patience=PATIENCE))
    assert list(tmp_path.iterdir())


def test_a_worker_stopped_from_outside_is_replaced(alone):
    stopped = []

    def stop_soon(workers):
        def stop(done):
            if done == 3 and not stopped:
                stopped.append(workers.pids[0])
                os.kill(stopped[0], signal.SIGSTOP)

        evaluate = workers.evaluate
        workers.evaluate = lambda generation: evaluate(generation, on_task=stop)

    assert_same(alone, train(objectives.Noisy(), 2, stop_soon, patience=PATIENCE))
    with pytest.raises(ProcessLookupError):
        os.kill(stopped[0], 0)


def test_a_task_that_always_hangs_ends_in_an_error():
    with LocalWorkers(objectives.endless, 1, patience=PATIENCE) as workers:
        with pytest.raises(WorkerError, match=f"killed after {PATIENCE:g} seconds without an"):
            workers.evaluate(simple().ask())
        assert not workers.pids


def simple():
    x = nn.Parameter(torch.ones(3))
    sgd = torch.optim.SGD([x], lr=0.1)
    return EvolutionStrategy({"x": x}, [sgd], num_directions=3, sigma=0.1)


def test_workers_have_one_thread_persist_and_end_with_the_context_or_an_interrupt():
    before = dict(os.environ)
    generation = simple().ask()

    def interrupt(done):
        raise KeyboardInterrupt

    with LocalWorkers(objectives.threads, 1) as workers:
        assert not workers.pids
        assert [o.value for o in workers.evaluate(generation)] == [11.0] * 6
        assert dict(os.environ) == before
        pids = workers.pids
        workers.evaluate(generation, generation.tasks[:1])
        assert workers.pids == pids and len(pids) == 1
        with pytest.raises(KeyboardInterrupt):
            workers.evaluate(generation, on_task=interrupt)
        assert not workers.pids
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


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


def test_deaths_before_a_worker_was_ready_are_forgotten_when_all_are_ended(tmp_path):
    generation = simple().ask()
    with LocalWorkers(objectives.Newborn(tmp_path, fatal=(1, 2, 3, 4)), 1) as workers:
        with pytest.raises(WorkerError, match="3 in a row died before they were"):
            workers.evaluate(generation)
        assert len(workers.evaluate(generation)) == 6  # the fourth dies, the fifth does not


def test_the_death_of_an_idle_worker_is_none_before_it_was_ready(tmp_path):
    generation = simple().ask()

    def kill_the_idle(done):
        if done == 1:
            (idle,) = [slot for slot in workers._slots if slot.task is None]
            os.kill(idle.process.pid, signal.SIGKILL)

    with LocalWorkers(objectives.Meeting(tmp_path, fatal=(3, 4)), 2) as workers:
        assert len(workers.evaluate(generation, generation.tasks[:2], kill_the_idle)) == 2


WRONG = [
    (objectives.nan, NonFiniteReturnError, "got nan at plus direction 0 of generation 0, seed"),
    (objectives.no_number, TypeError, r"one number: got 'a tensor of shape \(2,\)'. Sum"),
    (objectives.cracked, LookupError, "nothing here"),
]


@pytest.mark.bad_input
@pytest.mark.parametrize("objective, error, text", WRONG, ids=["nan", "no number", "raises"])
def test_an_error_of_the_objective_is_raised(objective, error, text):
    with pytest.raises(error, match=text):
        InProcess(objective).evaluate(simple().ask())


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "objective, error, text",
    [
        WRONG[-1],
        (objectives.leaves, RuntimeError, r"must return a number: it called sys.exit\(3\)"),
        (objectives.Unloadable(), ImportError, "no module named simulator"),
        (
            objectives.DeadOnArrival(),
            WorkerError,
            r"3 in a row died before they were \(exit code 3\)",
        ),
    ],
    ids=["raises", "leaves", "import", "dead"],
)
def test_an_error_in_a_worker_is_raised_here(objective, error, text):
    with LocalWorkers(objective, 1) as workers, pytest.raises(error, match=text) as caught:
        workers.evaluate(simple().ask())
    if error is LookupError:
        assert "in cracked" in str(caught.value.__cause__)  # the worker's own traceback


def test_an_error_that_cannot_be_pickled_travels_as_its_text():
    error, text = portable(objectives.UnpicklableError("a", "b"))
    assert isinstance(error, RuntimeError) and str(error) == "UnpicklableError: a"
    assert "UnpicklableError" in text
    same, _ = portable(NonFiniteReturnError("c"))
    assert isinstance(same, NonFiniteReturnError)


@pytest.mark.bad_input
def test_what_cannot_be_sent_is_refused_at_once():
    with pytest.raises(WorkerError, match="must be picklable: .* or evaluate in this process"):
        LocalWorkers(lambda p: 0.0, 2)
    with pytest.raises(ValueError, match="`num_workers` must be a whole number of at least 1"):
        LocalWorkers(objectives.sphere, 0)
    with pytest.raises(ValueError, match="`patience` must be above 0 seconds: got 0"):
        LocalWorkers(objectives.sphere, 1, patience=0)
    with pytest.raises(TypeError, match="a function of the parameters or an Objective: got int"):
        InProcess(3)
