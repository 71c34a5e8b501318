"""Training on a GPU: all jobs of a lot advance together, a generation at a time.

While the GPU simulates the perturbed policies, worker processes score the centres in the original
environments, on the processor that would be idle.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import jax
import torch

from ...es import LocalWorkers, Outcome
from ...es.workers import Workers
from ..run import Run
from .jobs import Job, Trainee, result
from .mjx_rollout import CHUNK, Batch, Returned
from .mjx_strategy import MjxGeneration, MjxStrategy
from .mjx_tasks import simulate
from .rollout import Rollout

if TYPE_CHECKING:
    from ..experiments.rl import RLConfig

CAP = 2.0
"""Episodes may last as many times the mean length of the generation before: the whole batch waits
for its longest episode."""


def train(
    config: "RLConfig", jobs: Sequence[Job], num_workers: int, cell: str, run: Run
) -> dict[str, dict[str, Any]]:
    """Train the jobs of one task; after each generation their state is on disk.

    Returns:
        The result of each job, by its cell's name.
    """
    device = "cuda" if jax.default_backend() == "gpu" and torch.cuda.is_available() else "cpu"
    trainees = [Trainee(config, job, MjxStrategy, device) for job in jobs]
    strategies = [trainee.strategy for trainee in trainees]
    curves: list[list[dict[str, Any]]] = [[] for _ in jobs]
    caps = [config.horizon] * len(jobs)
    state = run.load(cell)
    if state is not None:
        for strategy, saved in zip(strategies, state["strategies"], strict=True):
            strategy.load_state_dict(saved)
        caps, curves = state["caps"], state["curves"]
    task = jobs[0].task
    simulation = simulate(task)
    batch = Batch(simulation, config.horizon)

    def on_chunk(part: float) -> None:
        run.progress((strategies[0].generation + part) / config.generations)

    with (
        LocalWorkers(Rollout(task, config.horizon), num_workers) as workers,
        ThreadPoolExecutor(1) as beside,
    ):
        while strategies[0].generation < config.generations:
            generations = [strategy.ask() for strategy in strategies]
            scoring = beside.submit(_scores, workers, generations)
            found = batch.evaluate(generations, caps, on_chunk)
            scores = scoring.result()
            for j, trainee in enumerate(trainees):
                record = trainee.strategy.tell(_outcomes(found[j], scores[j]))
                row = {**asdict(record), "drift": trainee.after_step(), "cap": caps[j]}
                curves[j].append({**row, "broken": found[j].broken})
                run.metric(cell, job=trainee.job.cell, **curves[j][-1])
                if simulation.ends:
                    caps[j] = min(max(CHUNK, round(CAP * found[j].length)), config.horizon)
            run.save(
                cell,
                {
                    "strategies": [strategy.state_dict() for strategy in strategies],
                    "caps": list(caps),
                    "curves": curves,
                },
            )
        ends = _scores(workers, [strategy.ask() for strategy in strategies])
    simulation.close()
    return {
        job.cell: result(curve, end) for job, curve, end in zip(jobs, curves, ends, strict=True)
    }


def _scores(workers: Workers, generations: Sequence[MjxGeneration]) -> list[list[Outcome]]:
    """Returns of the centres in the original environment."""
    return [
        workers.evaluate(generation, [task for task in generation.tasks if task.sign == 0])
        for generation in generations
    ]


def _outcomes(found: Returned, scores: list[Outcome]) -> list[Outcome]:
    """One for each task; the first carries the moments of all."""
    points = [
        Outcome(value, steps, found.observed if i == 0 else None)
        for i, (value, steps) in enumerate(
            zip(found.values.tolist(), found.steps.tolist(), strict=True)
        )
    ]
    return points + scores
