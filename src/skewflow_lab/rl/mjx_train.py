"""Training on a GPU: all jobs of a group advance together, a generation at a time.

While the GPU simulates the perturbed policies, the processor is not idle: a thread resets the
environments for the next generation, and worker processes score the centres in the original ones.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax
import torch

from skewflow.es import Outcome

from ..runs.run import Run
from .centres import Centres
from .jobs import Job, Trainee
from .methods import Settings
from .mjx_rollout import CHUNK, Batch, Returned
from .mjx_starts import Starts
from .mjx_strategy import MjxStrategy
from .mjx_tasks import simulate
from .rollout import Rollout
from .train import process_workers, result

if TYPE_CHECKING:
    from .config import RLConfig

CAP = 2.0
"""Largest length of an episode, relative to the mean of the previous generation: the whole batch
waits for its longest episode."""


def train(
    config: "RLConfig", jobs: Sequence[Job], settings: Sequence[Settings], cell: str, run: Run
) -> dict[str, dict[str, Any]]:
    """Train the jobs of one task; after each generation their state is on disk.

    Args:
        config: The settings.
        jobs: Of one task.
        settings: Of each job.
        cell: Where all of this is in the run.
        run: The run.

    Returns:
        The result of each job, by its name.
    """
    device = "cuda" if jax.default_backend() == "gpu" and torch.cuda.is_available() else "cpu"
    trainees = [
        Trainee(config, job, own, MjxStrategy, device)
        for job, own in zip(jobs, settings, strict=True)
    ]
    strategies = [trainee.strategy for trainee in trainees]
    longest = min(config.train_horizon or config.horizon, config.horizon)
    caps = [longest] * len(jobs)
    clock = {"steps": 0.0, "rollout seconds": 0.0, "generation seconds": 0.0}
    state = run.load(cell)
    if state is not None:
        for trainee, saved in zip(trainees, state["trainees"], strict=True):
            trainee.load_state_dict(saved)
        caps, clock = state["caps"], state["clock"]
    simulation = simulate(jobs[0].task)
    batch, compiled = Batch(simulation, config.alive_part), False

    def starts_of(number: int) -> Starts:
        return batch.starts([strategy.evaluation_seeds(number) for strategy in strategies])

    def on_chunk(part: float) -> None:
        run.progress((strategies[0].generation + part) / config.generations)

    rollout = Rollout(jobs[0].task, config.horizon)
    try:
        with process_workers(config, rollout) as workers, ThreadPoolExecutor(2) as beside:
            ahead = beside.submit(starts_of, strategies[0].generation)
            while (number := strategies[0].generation) < config.generations:
                began = time.perf_counter()
                generations = [strategy.ask() for strategy in strategies]
                scoring = beside.submit(Centres.of(generations).score, workers)
                starts, ahead = ahead.result(), beside.submit(starts_of, number + 1)
                found = batch.evaluate(generations, caps, on_chunk, starts)
                rolled = time.perf_counter() - began
                scores = scoring.result()
                for j, trainee in enumerate(trainees):
                    outcomes = _outcomes(found[j]) + scores[j]
                    row = trainee.tell(outcomes, cap=caps[j], broken=found[j].broken)
                    run.metric(cell, job=trainee.job.cell, **row)
                    if simulation.ends:
                        caps[j] = min(max(CHUNK, round(CAP * found[j].length)), longest)
                if compiled:  # the first generation of a process waits for the compiler
                    clock["steps"] += float(sum(returned.steps.sum() for returned in found))
                    clock["rollout seconds"] += rolled
                    clock["generation seconds"] += time.perf_counter() - began
                compiled = True
                for name, value in clock.items():
                    run.time(cell, name, value)
                saved = [trainee.state_dict() for trainee in trainees]
                run.save(cell, {"trainees": saved, "caps": list(caps), "clock": dict(clock)})
    finally:
        simulation.close()
    for trainee in trainees:
        run.keep(trainee.job.cell, trainee.policy())
    return {trainee.job.cell: result(config, trainee) for trainee in trainees}


def _outcomes(found: Returned) -> list[Outcome]:
    """One for each perturbed point; the first carries the moments of all."""
    values = zip(found.values.tolist(), found.steps.tolist(), strict=True)
    return [
        Outcome(value, steps, found.observed if i == 0 else None)
        for i, (value, steps) in enumerate(values)
    ]
