"""Flows on O(d) and ST(d, k): integrators, fields, and the experiments on them (Sec. 9.3, 9.9)."""

from .adaptive import integrate_adaptive as integrate_adaptive
from .convergence import Convergence as Convergence
from .convergence import quadratic_convergence as quadratic_convergence
from .fields import Brockett as Brockett
from .fields import Field as Field
from .fields import GradientField as GradientField
from .haar_mixing import Mixing as Mixing
from .haar_mixing import haar_mixing as haar_mixing
from .haar_mixing import haar_moments as haar_moments
from .haar_mixing import largest_spacing as largest_spacing
from .haar_mixing import random_rotations as random_rotations
from .integrate import integrate as integrate
from .random_fields import GaussianField as GaussianField
from .random_fields import RandomWalkField as RandomWalkField
from .sorting import inverse_fraction as inverse_fraction
from .sorting import largest_stable_step as largest_stable_step
from .sorting import nearest_permutation as nearest_permutation
from .sorting import sortedness as sortedness
from .sorting import sorting_field as sorting_field
from .sorting_run import SortingRun as SortingRun
from .sorting_run import SortingScores as SortingScores
from .strang import integrate_strang as integrate_strang
from .trajectory import Trajectory as Trajectory

__all__ = [
    "Brockett",
    "Convergence",
    "Field",
    "GaussianField",
    "GradientField",
    "Mixing",
    "RandomWalkField",
    "SortingRun",
    "SortingScores",
    "Trajectory",
    "haar_mixing",
    "haar_moments",
    "integrate",
    "integrate_adaptive",
    "integrate_strang",
    "inverse_fraction",
    "largest_spacing",
    "largest_stable_step",
    "nearest_permutation",
    "quadratic_convergence",
    "random_rotations",
    "sortedness",
    "sorting_field",
]
