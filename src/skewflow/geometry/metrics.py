"""Inner products on tangent spaces and the Riemannian gradients they induce (Sec. 2.1.2, 9.4.2)."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from .. import _validate
from .precision import no_autocast
from .tangent import tangent_project

Metric = Literal["canonical", "euclidean"]
METRICS = ("canonical", "euclidean")


@no_autocast()
def inner(
    X: Float[Tensor, "*batch d k"],
    Z1: Float[Tensor, "*batch d k"],
    Z2: Float[Tensor, "*batch d k"],
    metric: Metric = "canonical",
) -> Float[Tensor, "*batch"]:
    r"""Inner product of two tangent vectors at `X`, per matrix (Sec. 9.4.2).

    Euclidean: $\mathrm{tr}(Z_1^\top Z_2)$. Canonical:
    $\mathrm{tr}(Z_1^\top (I - \tfrac12 X X^\top) Z_2)$ (the paper misplaces a bracket).

    Example:
        >>> import torch
        >>> Z = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
        >>> inner(torch.eye(2), Z, Z), inner(torch.eye(2), Z, Z, metric="euclidean")
        (tensor(1.), tensor(2.))
    """
    _validate.one_of(metric, METRICS, "metric")
    _validate.tall(X)
    _validate.like(Z1, X, "Z1", "X")
    _validate.like(Z2, X, "Z2", "X")
    euclidean = (Z1 * Z2).sum((-2, -1))
    if metric == "euclidean":
        return euclidean
    return euclidean - ((X.mT @ Z1) * (X.mT @ Z2)).sum((-2, -1)) / 2


@no_autocast()
def riemannian_gradient(
    X: Float[Tensor, "*batch d k"],
    G: Float[Tensor, "*batch d k"],
    metric: Metric = "canonical",
) -> Float[Tensor, "*batch d k"]:
    r"""The tangent vector R with $\langle R, Z\rangle = \mathrm{tr}(G^\top Z)$ for tangent Z.

    Canonical metric: $R = \Omega X = G - X G^\top X$ (the paper's choice, Sec. 2.1.2), in
    $O(dk^2)$ without forming $\Omega$. Euclidean metric: $G - X\,\mathrm{sym}(X^\top G)$.
    On O(d) the second is half the first; for k < d they are not multiples of each other.

    Example:
        >>> import torch
        >>> X, G = torch.eye(2), torch.tensor([[0.0, 1.0], [0.0, 0.0]])
        >>> riemannian_gradient(X, G)
        tensor([[ 0.,  1.],
                [-1.,  0.]])
    """
    _validate.one_of(metric, METRICS, "metric")
    _validate.tall(X)
    _validate.like(G, X, "G", "X")
    if metric == "euclidean":
        return tangent_project(X, G)
    return G - X @ (G.mT @ X)
