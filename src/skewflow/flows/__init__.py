"""Flows on O(d) and ST(d, k): integrators and vector fields (Eq. 3, Sec. 9.3, 9.9)."""

from .adaptive import integrate_adaptive as integrate_adaptive
from .fields import Brockett as Brockett
from .fields import Field as Field
from .fields import GradientField as GradientField
from .integrate import integrate as integrate
from .random_fields import GaussianField as GaussianField
from .random_fields import RandomWalkField as RandomWalkField
from .sorting import inverse_fraction as inverse_fraction
from .sorting import largest_stable_step as largest_stable_step
from .sorting import nearest_permutation as nearest_permutation
from .sorting import sortedness as sortedness
from .sorting import sorting_field as sorting_field
from .strang import integrate_strang as integrate_strang
from .trajectory import Trajectory as Trajectory

__all__ = [
    "Brockett",
    "Field",
    "GaussianField",
    "GradientField",
    "RandomWalkField",
    "Trajectory",
    "integrate",
    "integrate_adaptive",
    "integrate_strang",
    "inverse_fraction",
    "largest_stable_step",
    "nearest_permutation",
    "sortedness",
    "sorting_field",
]
