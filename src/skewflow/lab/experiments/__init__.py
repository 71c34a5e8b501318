"""The experiments by name; a new one is a file here and a line below."""

from typing import Any

from ..experiment import Experiment
from .cifar import Cifar
from .convergence import Convergence
from .haar import Haar
from .mnist import Mnist
from .numerics import Numerics
from .rho import Rho
from .rl import RL
from .rnn import Rnn
from .table1 import Table1
from .table2 import Table2
from .variance import Variance

EXPERIMENTS: dict[str, Experiment[Any]] = {
    experiment.name: experiment
    for experiment in (
        Table1(),
        Table2(),
        Variance(),
        Rho(),
        Numerics(),
        Convergence(),
        Haar(),
        Cifar(),
        Mnist(),
        RL(),
        Rnn(),
    )
}
