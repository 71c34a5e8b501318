r"""Vector fields on O(d) and ST(d, k): a generator $\Omega(t, X)$ per time and point (Eq. 3)."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from .. import _validate
from ..errors import ShapeError
from ..geometry.skew import Side, check_fits, omega
from ..tournaments.edge_weights import EdgeWeights


class Field:
    r"""The field of the flow $X' = \Omega(t, X) X$, or $X\Omega(t, X)$ in the reverse form (Eq. 3).

    Args:
        function: ``function(t, X)`` is the skew generator, (\*batch, d, d) for points
            (\*batch, d, k).
        side: "left" for $X' = \Omega X$, "right" for the reverse form $X' = X\Omega$ (k = d only).

    Example:
        >>> turn = Field(lambda t, X: torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
        >>> turn(0.0, torch.eye(2))
        tensor([[ 0.,  1.],
                [-1.,  0.]])
    """

    def __init__(
        self,
        function: Callable[[float, Float[Tensor, "*batch d k"]], Float[Tensor, "*batch d d"]],
        side: Side = "left",
    ) -> None:
        _validate.one_of(side, ("left", "right"), "side")
        self._function = function
        self.side: Side = side

    def __call__(self, t: float, X: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch d d"]:
        """The generator at time `t`."""
        generator = self._function(t, X)
        check_fits(generator, X, "omega", (X.shape[-2], X.shape[-2]))
        return generator

    def edge_weights(self, t: float, X: Float[Tensor, "*batch d k"]) -> list[EdgeWeights]:
        """The tournament of the generator of each matrix of the batch, in order."""
        d = X.shape[-2]
        return [EdgeWeights.of(one) for one in self(t, X).reshape(-1, d, d)]


class GradientField(Field):
    r"""The gradient field of a function F, along which the flow *ascends* (Eq. 2, Eq. 3).

    $\Omega = GX^\top - XG^\top$ with the Euclidean gradient G, by autograd. Pass -F to descend. A
    stochastic step computes single entries of $\Omega$ in $O(k)$ each and does not form it.

    Args:
        function: ``function(X)`` is F of each matrix, of shape (\*batch) for points
            (\*batch, d, k).
        side: "left", or "right" for the reverse form (k = d only).

    Example:
        >>> field = GradientField(lambda X: X[..., 0, 1])
        >>> field(0.0, torch.eye(2))
        tensor([[ 0.,  1.],
                [-1.,  0.]])
    """

    def __init__(
        self,
        function: Callable[[Float[Tensor, "*batch d k"]], Float[Tensor, "*batch"]],
        side: Side = "left",
    ) -> None:
        super().__init__(lambda t, X: omega(X, self.gradient(X), self.side), side)
        self.value = function

    def gradient(self, X: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch d k"]:
        """The Euclidean gradient of F at each matrix."""
        with torch.enable_grad():
            X = X.detach().requires_grad_()
            F = self.value(X)
            if not isinstance(F, Tensor) or F.shape != X.shape[:-2]:
                got = tuple(F.shape) if isinstance(F, Tensor) else type(F).__name__
                raise ShapeError(
                    f"the function of a gradient field must give one number for each matrix, shape "
                    f"{tuple(X.shape[:-2])}: got {got}. Sum over the last two dimensions only."
                )
            return torch.autograd.grad(F.sum(), X)[0]

    def edge_weights(self, t: float, X: Float[Tensor, "*batch d k"]) -> list[EdgeWeights]:
        """Lazy tournaments: one gradient for the batch, and no entry of the generators yet."""
        G = self.gradient(X).flatten(0, -3) if X.ndim > 2 else self.gradient(X)[None]
        return [
            EdgeWeights(X_b, G_b, self.side) for X_b, G_b in zip(X.reshape(G.shape), G, strict=True)
        ]


class Brockett(GradientField):
    r"""Brockett's field, the gradient of $F(X) = \frac12 \mathrm{tr}(X^\top A X N)$.

    With distinct weights $n_1 > \dots > n_k > 0$ almost every start flows to the eigenvectors of
    the k largest eigenvalues of A, column by column, which is PCA if A is a covariance. Sec. 9.3
    has the field with a diagonal A (see `sorting_field`); a general A is not in the paper.

    Args:
        A: Symmetric matrix (\*batch, d, d).
        weights: The diagonal of N, (k).
        side: "left", or "right" for the reverse form (k = d only).

    Example:
        >>> field = Brockett(torch.diag(torch.tensor([1.0, 3.0])), torch.tensor([1.0]))
        >>> X = torch.tensor([[0.6], [0.8]])
        >>> field(0.0, X)  # turns towards the second axis
        tensor([[ 0.0000, -0.9600],
                [ 0.9600,  0.0000]])
    """

    def __init__(
        self,
        A: Float[Tensor, "*batch d d"],
        weights: Float[Tensor, "k"],
        side: Side = "left",
    ) -> None:
        _validate.square(A, "A")
        _validate.floating(weights, "weights")
        if weights.ndim != 1:
            raise ShapeError(
                f"`weights` must be the diagonal of N, one vector: got shape "
                f"{tuple(weights.shape)}. Pass `N.diagonal()`."
            )
        if (A - A.mT).abs().max() > 1e-6 * A.abs().max():
            raise ValueError(
                f"`A` must be symmetric: got max |A - A^T| = {(A - A.mT).abs().max().item():.1e}. "
                "Pass (A + A.mT) / 2, which gives the same F."
            )
        super().__init__(lambda X: (X * self.gradient(X)).sum((-2, -1)) / 2, side)
        self.A = A
        self.weights = weights

    def gradient(self, X: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch d k"]:
        """A X N."""
        return self.A @ X * self.weights
