"""Start a run over and over, kill it with signal 9 each time, then let it end. Run as a script.

Importing torch takes seconds, so it is imported once and every start is a fork.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from rich.console import Console

from lab.walk import Walk, WalkConfig
from skewflow.lab.reproduce import execute


def start(out, prepare=lambda: None):
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)
        prepare()
        execute(Walk(), WalkConfig(), out=out, resume=True, console=Console(quiet=True))
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


def main(out, seed):
    rng = random.Random(seed)
    kills = 0
    for n in range(10):
        if n % 2:
            number, before = rng.randint(1, 12), rng.random() < 0.5
            pid = start(out, lambda number=number, before=before: die_at_write(number, before))
        else:
            pid = start(out)
            time.sleep(rng.uniform(0, 0.15))
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        kills += os.WIFSIGNALED(status)
    _, status = os.waitpid(start(out), 0)
    print(kills)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
