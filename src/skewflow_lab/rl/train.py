"""Training on this machine, or on a cluster of Ray: one job, a generation at a time."""

import os
from collections.abc import Callable
from typing import Any

from skewflow.es import (
    EvolutionStrategy,
    LocalWorkers,
    Workers,
)

from ..runs.run import Run
from .config import RLConfig
from .jobs import Job, Trainee
from .methods import Settings
from .pool_workers import PoolWorkers
from .ray_workers import RayWorkers
from .rollout import Rollout
from .score import score


def train(config: RLConfig, job: Job, settings: Settings, cell: str, run: Run) -> dict[str, Any]:
    """Train one policy and score it; the state goes to disk with each point of its curve."""
    trainee = Trainee(config, job, settings, EvolutionStrategy)
    state = run.load(cell)
    if state is not None:
        trainee.load_state_dict(state)

    def after(row: dict[str, Any]) -> None:
        run.progress(trainee.strategy.generation / config.generations)
        if row["score"] is not None:
            run.metric(cell, **row)
            run.save(cell, trainee.state_dict())

    with workers_for(config, trainee) as workers:
        advance(trainee, workers, config.generations, after)
    run.keep(cell, trainee.policy())
    return result(config, trainee)


def advance(
    trainee: Trainee[Any],
    workers: Workers,
    until: int,
    after: Callable[[dict[str, Any]], None] = lambda row: None,
) -> None:
    """Train until a number of generations is done, with a call after each."""
    while trainee.strategy.generation < until:
        after(trainee.tell(workers.evaluate(trainee.strategy.ask())))


def workers_for(config: RLConfig, trainee: Trainee[Any]) -> Workers:
    """What evaluates the generations of a job: EnvPool, worker processes, or Ray."""
    rollout = rollout_of(config, trainee)
    if config.backend == "processes":
        return process_workers(config, rollout)
    threads = config.workers or os.cpu_count() or 1
    assert threads != "ray"  # `check` refuses it for EnvPool
    return PoolWorkers(rollout, trainee.strategy.tasks(0), threads)


def process_workers(config: RLConfig, rollout: Rollout) -> Workers:
    """Processes with the original environments, here or on Ray."""
    # A tenth of a second for each step is a hundred times what the slowest simulation takes.
    patience = 600 + 0.1 * config.horizon * config.num_evaluations
    if config.workers == "ray":
        return RayWorkers(rollout, address=config.address, patience=patience)
    return LocalWorkers(rollout, config.workers or os.cpu_count() or 1, patience=patience)


def rollout_of(config: RLConfig, trainee: Trainee[Any]) -> Rollout:
    """The episodes of a job."""
    return Rollout(
        trainee.job.task, config.horizon, alive_part=config.alive_part, fixed=trainee.fixed
    )


def result(config: RLConfig, trainee: Trainee[Any]) -> dict[str, Any]:
    """The record of a job that is done, with scores of its last policy in starts new to it."""
    last, seeds = trainee.strategy.ask(), trainee.score_seeds(config.final_scores)
    rollout = rollout_of(config, trainee)
    try:
        returns, gait = score(rollout, last.centre, last.moments, seeds)
    finally:
        rollout.simulation().close()
    return trainee.result(returns, gait)
