"""Steps per second of MJX rollouts, each episode with a recurrent policy of its own.

Policies, physics, rewards and ends as `skewflow reproduce rl --backend mjx` computes them, the four
recurrent methods in one batch. Every step of the batch counts, also of an episode that is over: it
costs the same. `--save` writes `benchmarks/data/rollouts.json`, with the machine and the versions.
Needs the extras `rl` and `rl-gpu`, and no other.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.rl.jobs import Job, Trainee
from skewflow_lab.rl.mjx_rollout import CHUNK, Batch
from skewflow_lab.rl.mjx_strategy import MjxStrategy
from skewflow_lab.rl.mjx_tasks import simulate
from skewflow_lab.runs.environment import environment
from skewflow_lab.runs.files import write_json

METHODS = ("stoch-ortRNN", "exact-ortRNN", "vanRNN", "ortinit-vanRNN")
DATA = Path(__file__).parent / "data" / "rollouts.json"


def measure(task: str, size: int, hidden: int, steps: int, rounds: int) -> dict[str, Any]:
    """Seconds of compilation, and of `steps` steps of the whole batch."""
    config = replace(
        EXPERIMENTS["rl"].presets["paper"], num_directions=size // (2 * len(METHODS)), num_scores=1
    )
    trainees = [
        Trainee(
            config, Job(task, method, hidden, 20 * (method == "ortinit-vanRNN"), 0), MjxStrategy
        )
        for method in METHODS
    ]
    simulation = simulate(task)
    simulation.ends = False  # or the rollout would stop when all have fallen
    batch = Batch(simulation)
    generations = [trainee.strategy.ask() for trainee in trainees]
    starts = batch.starts([trainee.strategy.evaluation_seeds(0) for trainee in trainees])

    def roll(length: int) -> float:
        began = time.perf_counter()
        batch.evaluate(generations, [length] * len(generations), starts=starts)
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
        "steps a second": episodes * steps / float(np.median(times)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--task", nargs="+", default=["Humanoid"])
    parser.add_argument("--batch", type=int, nargs="+", default=[4096])
    parser.add_argument("--hidden", type=int, default=200)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help=f"write {DATA.name}")
    args = parser.parse_args()

    rows = []
    for task in args.task:
        for size in args.batch:
            rows.append(measure(task, size, args.hidden, args.steps, args.rounds))
            print(json.dumps(rows[-1]), flush=True)
    if args.save:
        rl: Any = EXPERIMENTS["rl"]
        besides = rl.environment(replace(rl.presets["paper"], backend="mjx"))
        behind = {**environment("cpu"), **besides}
        write_json(DATA, {"environment": behind, "rows": rows})


if __name__ == "__main__":
    main()
