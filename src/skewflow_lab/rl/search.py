"""The search of a method's settings: successive halving, the same for all methods."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from statistics import fmean
from typing import Any

import torch

from skewflow.es import EvolutionStrategy

from ..runs.run import Run
from ..runs.seeds import spawn
from .config import RLConfig
from .jobs import Job, Trainee
from .methods import Settings
from .train import advance, workers_for

LRS = (0.02, 0.05, 0.1, 0.2)
RATES = (0.003, 0.01, 0.03, 0.1)
MOMENTA = (0.0, 0.9)
SIGMAS = (0.02, 0.05, 0.1)
SEED = 1_000_000
"""The seed of all trials; no seed of a run is as large."""
FIRST = 16
"""The first round of a search has 1 / 16 of the generations of a run, two at least, and each round
twice as many as the one before."""
POINTS = 4
"""A trial of the first round has at least so many points of its curve, or one a generation."""
Curve = Sequence[tuple[int, int, float]]
"""Generation, steps of the environment, and score."""
FINALISTS = 2
"""The last round has so many trials. 16 trials and their rounds cost 2.5 runs."""


def trials(count: int) -> list[Settings]:
    """The settings that all methods try: up to 16 pairs of step sizes, each of them once.

    The pairs are in random order, and momentum and sigma take turns over them.
    """
    pairs = list(product(LRS, RATES))
    order = torch.randperm(len(pairs), generator=spawn(0, "trials")).tolist()
    return [
        Settings(lr, rate, MOMENTA[t % len(MOMENTA)], SIGMAS[t % len(SIGMAS)])
        for t, (lr, rate) in enumerate(pairs[p] for p in order[:count])
    ]


def rounds(count: int, generations: int) -> list[tuple[int, int]]:
    """How many trials go on in each round, and until which generation."""
    found, until = [], max(2, generations // FIRST)
    while True:
        found.append((count, min(until, generations)))
        if count <= FINALISTS:
            return found
        count, until = count // 2, 2 * until


def search(config: RLConfig, job: Job, cell: str, run: Run) -> dict[str, Any]:
    """Try settings for the method of a job; all trials, and the best of the last round."""
    tried = trials(config.trials)
    state = run.load(cell) or {"trainees": {}}
    states: dict[int, dict[str, Any]] = dict(state["trainees"])
    curves: list[Curve] = [[] for _ in tried]
    plan = rounds(len(tried), config.generations)
    often = replace(config, score_every=min(config.score_every, max(1, plan[0][1] // POINTS)))
    alive, done, ends = list(range(len(tried))), 0, [0] * len(tried)
    for count, until in plan:
        best_first = sorted(alive, key=lambda t: -score(curves[t]))
        alive = sorted(best_first[:count])
        for t in alive:
            trainee = Trainee(often, job, tried[t], EvolutionStrategy)
            if t in states:
                trainee.load_state_dict(states[t])
            if trainee.strategy.generation < until:
                with workers_for(often, trainee) as workers:
                    advance(trainee, workers, until)
                states[t] = trainee.state_dict()
                run.save(cell, {"trainees": states})
            # A resumed search finds some trials further than this round.
            curves[t] = [point for point in trainee.curve if point[0] < until]
            ends[t] = until
            done += 1
            run.progress(done / sum(count for count, _ in plan))
    best = max(alive, key=lambda t: score(curves[t]))
    rows = [
        {**asdict(settings), "generations": end, "score": score(curve)}
        for settings, end, curve in zip(tried, ends, curves, strict=True)
    ]
    return {"trials": rows, "settings": asdict(tried[best])}


def score(curve: Curve) -> float:
    """The mean over the second half of a curve; 0 for none."""
    return fmean(value for _, _, value in curve[len(curve) // 2 :]) if curve else 0.0
