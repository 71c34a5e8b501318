"""`skewflow bench rollouts`: steps of control tasks per second, while policies are trained."""

import json
import time
from dataclasses import replace
from statistics import median
from typing import Any, Literal

from skewflow.es import EvolutionStrategy, Workers

from ..rl.config import RLConfig
from ..rl.jobs import Job, Trainee
from ..rl.methods import Method, Settings
from ..rl.pool import require_envpool
from ..rl.tasks import TaskName, require_mjx, require_simulators, versions
from ..rl.train import workers_for
from ..runs.environment import environment
from ..runs.files import recorded, write_json
from ..runs.threads import one_thread
from .command import check_rounds, show

METHODS: tuple[Method, ...] = ("stoch-ortRNN", "exact-ortRNN", "vanRNN", "ortinit-vanRNN")
"""The methods with a recurrent policy; a batch on MJX has the same number of episodes of each."""
SLOWER = 8
"""Worker processes evaluate one direction in so many: they are compared by steps per second."""


def rollouts(
    task: tuple[TaskName, ...] = ("HalfCheetah", "reacher-hard", "hopper-stand"),
    backend: Literal["envpool", "mjx"] = "envpool",
    batch: tuple[int, ...] = (64,),
    hidden: int = 64,
    steps: int = 1000,
    rounds: int = 5,
    save: bool = False,
) -> None:
    """Time whole generations of `skewflow reproduce rl` on two threads, or rollouts on MJX.

    With EnvPool a generation is simulation, policies, statistics and the step of the optimisers;
    the worker processes of `--backend processes` are timed in the same rounds. On MJX every step of
    the batch counts, also those of finished episodes, because they cost the same. Needs the extra
    `rl`; for MJX also `rl-gpu`.

    Args:
        task: Control tasks.
        backend: What simulates.
        batch: Number of simultaneous episodes.
        hidden: Entries of the recurrent state.
        steps: Steps of an episode, or of a rollout.
        rounds: Generations, or rollouts of each batch.
        save: Write results/bench/rollouts_cpu.json of the repository; rollouts.json for MJX.
    """
    check_rounds("cpu", rounds, save)
    mjx = backend == "mjx"
    require_simulators()
    (require_mjx if mjx else require_envpool)()
    measure = _rollouts_on_mjx if mjx else _generations
    rows = []
    for name in task:
        for size in batch:
            rows.append(measure(name, size, hidden, steps, rounds))
            show(json.dumps(rows[-1]))
    if save:
        machine = {**environment("cpu"), **versions(mjx=mjx)}
        file = recorded("rollouts.json" if mjx else "rollouts_cpu.json")
        write_json(file, {"environment": machine, "rows": rows})


@one_thread()
def _generations(task: TaskName, size: int, hidden: int, steps: int, rounds: int) -> dict[str, Any]:
    """Steps per second of whole generations, by EnvPool and by worker processes in turn."""
    config = RLConfig(num_directions=size // 2, horizon=steps, score_every=rounds + 2, workers=2)
    settings = Settings(config.lr, config.rate, config.momentum, config.sigma)
    job = Job(task, "exact-ortRNN", hidden, 0, 0)
    fast = Trainee(config, job, settings, EvolutionStrategy)
    few = replace(config, backend="processes", num_directions=max(1, size // 2 // SLOWER))
    slow = Trainee(few, job, settings, EvolutionStrategy)
    rates: dict[str, list[float]] = {"envpool": [], "processes": []}
    with workers_for(config, fast) as pool, workers_for(few, slow) as processes:
        _generation(fast, pool), _generation(slow, processes)  # compile, and start
        for _ in range(rounds):
            rates["envpool"].append(_generation(fast, pool))
            rates["processes"].append(_generation(slow, processes))
    ratios = [a / b for a, b in zip(*rates.values(), strict=True)]
    return {
        "task": task,
        "hidden": hidden,
        "episodes": size,
        "steps of an episode": steps,
        "steps a second": median(rates["envpool"]),
        "steps a second, processes": median(rates["processes"]),
        "over processes": median(ratios),
    }


def _generation(trainee: Trainee[EvolutionStrategy], workers: Workers) -> float:
    """Steps per second of the next generation."""
    before, began = trainee.strategy.steps, time.perf_counter()
    trainee.tell(workers.evaluate(trainee.strategy.ask()))
    return (trainee.strategy.steps - before) / (time.perf_counter() - began)


def _rollouts_on_mjx(
    task: TaskName, size: int, hidden: int, steps: int, rounds: int
) -> dict[str, Any]:
    """Seconds of compilation, and of `steps` steps of the whole batch."""
    from ..rl.mjx_rollout import CHUNK, Batch
    from ..rl.mjx_strategy import MjxStrategy
    from ..rl.mjx_tasks import simulate

    config = RLConfig(num_directions=size // (2 * len(METHODS)), num_scores=1)
    settings = Settings(config.lr, config.rate, config.momentum, config.sigma)
    trainees: list[Trainee[Any]] = [
        Trainee(
            config,
            Job(task, method, hidden, 20 * (method == "ortinit-vanRNN"), 0),
            settings,
            MjxStrategy,
        )
        for method in METHODS
    ]
    simulation = simulate(task)
    simulation.ends = False  # otherwise the rollout would stop when all have fallen
    whole = Batch(simulation)
    generations = [trainee.strategy.ask() for trainee in trainees]
    starts = whole.starts([trainee.strategy.evaluation_seeds(0) for trainee in trainees])

    def roll(length: int) -> float:
        began = time.perf_counter()
        whole.evaluate(generations, [length] * len(generations), starts=starts)
        return time.perf_counter() - began

    first = roll(CHUNK)
    again = roll(CHUNK)
    times = [roll(steps) for _ in range(rounds)]
    episodes = 2 * config.num_directions * len(METHODS)
    simulation.close()
    return {
        "task": task,
        "hidden": hidden,
        "episodes": episodes,
        "steps": steps,
        "seconds to compile": first - again,
        "seconds of a generation": times,
        "steps a second": episodes * steps / median(times),
    }
