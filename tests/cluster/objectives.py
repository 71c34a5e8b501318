"""Objectives for the processes of Ray to import."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from es.objectives import Noisy
from skewflow.es import Objective, Outcome


@dataclass
class Signed(Noisy):
    """Leaves the number of its process in a folder."""

    folder: Path = Path()

    def evaluate(self, params, seed, moments):
        (self.folder / str(os.getpid())).touch()
        return super().evaluate(params, seed, moments)


class Slow(Objective):
    """Takes a while, so that there is something to cancel."""

    def evaluate(self, params, seed, moments):
        time.sleep(0.2)
        return Outcome(float(params["x"].sum()))
