"""Start a run over and over, kill it with signal 9 each time, then let it end. Run as a script.

Arguments: folder, seeds as JSON, experiment, its settings as JSON, the seconds that a start may
live. The run of each seed is in the folder of its number.

Imports take seconds, so a first run makes them all, and every other one is a fork.
"""

import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from lab.runs.walk import Walk, WalkConfig
from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.runs.reproduce import execute


def start(experiment, config, out, prepare=lambda: None):
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)
        prepare()
        execute(experiment, config, out=out, resume=True, console=Console(quiet=True))
        os._exit(0)
    return pid


def die_at_write(number, before):
    """Kill this process at one of its writes, just before or just after the new name counts."""
    replace, count = os.replace, 0

    def counted(source, target):
        nonlocal count
        count += 1
        if count == number and before:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = counted


def kill_often(run, seed, seconds):
    """Kill a run ten times, and let it end: how often it was killed."""
    rng = random.Random(seed)
    kills = 0
    for n in range(10):
        if n % 2:
            pid = run(partial(die_at_write, rng.randint(1, 12), rng.random() < 0.5))
        else:
            pid = run()
            time.sleep(rng.uniform(0, seconds))
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        kills += os.WIFSIGNALED(status)
    _, status = os.waitpid(run(), 0)
    assert status == 0
    return kills


def main(folder, seeds, name, settings, seconds):
    torch.set_num_threads(1)
    experiment = {**EXPERIMENTS, "walk": Walk()}[name]
    listed = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items()}
    config = replace(experiment.presets["quick"], **listed)
    execute(Walk(), WalkConfig(), out=folder / "first", console=Console(quiet=True))
    for seed in seeds:
        print(kill_often(partial(start, experiment, config, folder / str(seed)), seed, seconds))


if __name__ == "__main__":
    folder, seeds, name, settings, seconds = sys.argv[1:]
    main(Path(folder), json.loads(seeds), name, json.loads(settings), float(seconds))
