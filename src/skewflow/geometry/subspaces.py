"""Angles and distance between subspaces: the Grassmann manifold through points of ST(d, k)."""

import torch
from jaxtyping import Float
from torch import Tensor

from .. import _validate
from .precision import full_precision, no_autocast
from .retractions import HALVES


@no_autocast()
def principal_angles(
    X: Float[Tensor, "*batch d k"], Y: Float[Tensor, "*batch d k"]
) -> Float[Tensor, "*batch k"]:
    r"""The angles between the spans of `X` and `Y`, from 0 to pi / 2, smallest first.

    Their cosines are the singular values of $X^\top Y$ and their sines those of
    $Y - X X^\top Y$; both together give small and large angles to full precision (Björck and
    Golub 1973). They do not change when `X` or `Y` becomes X Q with Q in O(k). Not in the paper.

    Args:
        X: Orthonormal columns that span the first subspace.
        Y: Orthonormal columns that span the second one.

    Example:
        >>> X, Y = torch.eye(3)[:, :2], torch.eye(3)[:, 1:]
        >>> principal_angles(X, Y)
        tensor([0.0000, 1.5708])
    """
    _validate.tall(X)
    _validate.like(Y, X, "Y", "X")
    if X.dtype in HALVES:
        return principal_angles(X.float(), Y.float()).to(X.dtype)
    with full_precision():
        C = X.mT @ Y
        cosines = torch.linalg.svdvals(C)
        sines = torch.linalg.svdvals(Y - X @ C).flip(-1)
    return torch.atan2(sines, cosines)


def grassmann_distance(
    X: Float[Tensor, "*batch d k"], Y: Float[Tensor, "*batch d k"]
) -> Float[Tensor, "*batch"]:
    r"""The length of the shortest path between the spans of `X` and `Y` (not in the paper).

    It is the Euclidean norm of `principal_angles`, the geodesic distance of the Grassmann manifold
    (Edelman, Arias and Smith 1998, Sec. 4.3).

    Example:
        >>> X = torch.eye(4)[:, :2]
        >>> Q = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
        >>> grassmann_distance(X, X @ Q)
        tensor(0.)
    """
    return torch.linalg.vector_norm(principal_angles(X, Y), dim=-1)
