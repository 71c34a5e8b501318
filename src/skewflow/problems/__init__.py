"""The paper's problems, each as one call: needs the extra `problems`."""

from typing import TYPE_CHECKING, Any

from . import _extra as _extra
from .assignment import GraphIsomorphism as GraphIsomorphism
from .assignment import graph_isomorphism as graph_isomorphism
from .assignment import quadratic_assignment as quadratic_assignment
from .block_sdp import BlockSDP as BlockSDP
from .block_sdp import solve_block_sdp as solve_block_sdp
from .max_cut import MaxCut as MaxCut
from .max_cut import max_cut as max_cut
from .synchronize import PoseGraph as PoseGraph
from .synchronize import Synchronization as Synchronization
from .synchronize import average_rotations as average_rotations
from .synchronize import read_g2o as read_g2o
from .synchronize import synchronize as synchronize

if TYPE_CHECKING:
    from .metric_learning import MahalanobisMetric as MahalanobisMetric
    from .random_features import OrthogonalRandomFeatures as OrthogonalRandomFeatures

__all__ = [
    "BlockSDP",
    "GraphIsomorphism",
    "MahalanobisMetric",
    "MaxCut",
    "OrthogonalRandomFeatures",
    "PoseGraph",
    "Synchronization",
    "average_rotations",
    "graph_isomorphism",
    "max_cut",
    "quadratic_assignment",
    "read_g2o",
    "solve_block_sdp",
    "synchronize",
]

_ESTIMATORS = {
    "MahalanobisMetric": "metric_learning",
    "OrthogonalRandomFeatures": "random_features",
}
"""Classes of scikit-learn's kind, and their modules: they load it when they are first used."""


def __getattr__(name: str) -> Any:
    if name not in _ESTIMATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _extra.require("sklearn")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_ESTIMATORS[name]}"), name)
