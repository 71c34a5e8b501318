"""The experiments by name; a new one is a file here and a line below."""

from typing import Any

from ..experiment import Experiment
from .numerics import Numerics

EXPERIMENTS: dict[str, Experiment[Any]] = {
    experiment.name: experiment for experiment in (Numerics(),)
}
