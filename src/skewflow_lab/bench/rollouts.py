"""`skewflow bench rollouts`: steps per second of MJX rollouts."""

import json
import time
from statistics import median
from typing import Any

from ..rl.config import RLConfig
from ..rl.jobs import Job, Trainee
from ..rl.methods import Method, Settings
from ..rl.tasks import TaskName, require_mjx, require_simulators, versions
from ..runs.environment import environment
from ..runs.files import recorded, write_json
from .command import check_rounds, show

METHODS: tuple[Method, ...] = ("stoch-ortRNN", "exact-ortRNN", "vanRNN", "ortinit-vanRNN")
"""The methods with a recurrent policy; a batch has the same number of episodes of each."""


def rollouts(
    task: tuple[TaskName, ...] = ("Humanoid",),
    batch: tuple[int, ...] = (4096,),
    hidden: int = 200,
    steps: int = 500,
    rounds: int = 3,
    save: bool = False,
) -> None:
    """Time MJX rollouts, in which every episode has its own recurrent policy.

    Policies, physics, rewards and ends are those of `skewflow reproduce rl --backend mjx`. Every
    step of the batch counts, also those of finished episodes, because they cost the same. Needs the
    extras `rl` and `rl-gpu`.

    Args:
        task: Control tasks.
        batch: Number of simultaneous episodes.
        hidden: Entries of the recurrent state.
        steps: Steps of a rollout.
        rounds: Rollouts of each batch.
        save: Write results/bench/rollouts.json of the repository.
    """
    check_rounds("cpu", rounds, save)
    require_simulators()
    require_mjx()
    rows = []
    for name in task:
        for size in batch:
            rows.append(_measure(name, size, hidden, steps, rounds))
            show(json.dumps(rows[-1]))
    if save:
        machine = {**environment("cpu"), **versions(mjx=True)}
        write_json(recorded("rollouts.json"), {"environment": machine, "rows": rows})


def _measure(task: TaskName, size: int, hidden: int, steps: int, rounds: int) -> dict[str, Any]:
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
