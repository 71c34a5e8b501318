"""The experiments by name; a new one needs a file here and a line below."""

from typing import Any

from ..runs.experiment import Experiment
from .cifar.experiment import Cifar
from .convergence.experiment import Convergence
from .haar.experiment import Haar
from .isomorphism.experiment import Isomorphism
from .max_cut.experiment import MaxCutGset
from .metric_learning.experiment import MetricLearning
from .mnist.experiment import Mnist
from .numerics import Numerics
from .ode.experiment import Ode
from .qaplib import Qaplib
from .random_features import RandomFeatures
from .rho import Rho
from .rl.experiment import RL
from .rnn.experiment import Rnn
from .synchronize.experiment import Synchronize
from .table1.experiment import Table1
from .table2.experiment import Table2
from .vae.experiment import Vae
from .variance.experiment import Variance

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
        Vae(),
        Ode(),
        Qaplib(),
        Isomorphism(),
        MetricLearning(),
        RandomFeatures(),
        MaxCutGset(),
        Synchronize(),
    )
}
