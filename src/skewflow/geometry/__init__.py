"""The geometry of O(d), SO(d) and ST(d, k) as pure functions (Sec. 2 of the paper)."""

from .checks import Check as Check
from .checks import check_skew as check_skew
from .checks import check_special as check_special
from .checks import check_stiefel as check_stiefel
from .checks import check_tangent as check_tangent
from .checks import orthogonality_error as orthogonality_error
from .checks import require as require
from .geodesics import curve as curve
from .geodesics import geodesic as geodesic
from .geodesics import lift as lift
from .givens import givens as givens
from .haar import haar as haar
from .metrics import inner as inner
from .metrics import riemannian_gradient as riemannian_gradient
from .project import project as project
from .retractions import cayley as cayley
from .retractions import expm as expm
from .retractions import taylor as taylor
from .skew import basis as basis
from .skew import omega as omega
from .skew import skew as skew
from .subspaces import grassmann_distance as grassmann_distance
from .subspaces import principal_angles as principal_angles
from .tangent import complement as complement
from .tangent import tangent_dimension as tangent_dimension
from .tangent import tangent_from as tangent_from
from .tangent import tangent_project as tangent_project

__all__ = [
    "Check",
    "basis",
    "cayley",
    "check_skew",
    "check_special",
    "check_stiefel",
    "check_tangent",
    "complement",
    "curve",
    "expm",
    "geodesic",
    "givens",
    "grassmann_distance",
    "haar",
    "inner",
    "lift",
    "omega",
    "orthogonality_error",
    "principal_angles",
    "project",
    "require",
    "riemannian_gradient",
    "skew",
    "tangent_dimension",
    "tangent_from",
    "tangent_project",
    "taylor",
]
