"""The interface of a problem: a start, gradients in a fixed order, a loss."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from skewflow.geometry import haar
from skewflow.geometry.precision import full_precision

from ...runs.seeds import spawn

Factors = tuple[Tensor, Tensor]
POWER_STEPS = 20


class Problem(ABC):
    r"""A loss to minimise over matrices (*batch, d, k) with orthonormal columns.

    Everything is drawn from the seed on the CPU, so it is the same on every device. Batch t of a
    stochastic problem depends only on t and the number of an order, so all methods get the same
    data in the same orders. Gradients are divided by $\|\Omega(X_0)\|_2$, so on every problem an
    exact step with learning rate one turns the start by a radian.
    """

    optimum: float | None = None
    """The least loss, or None if it is unknown."""
    deterministic = True
    """Whether gradients are those of the whole loss, not of a batch."""

    def __init__(self, shape: tuple[int, ...], device: torch.device | str, seed: int = 0) -> None:
        self.shape, self.device, self.seed = shape, torch.device(device), seed
        self.unit = 1.0
        """Factor on all gradients."""
        self._start: Tensor | None = None

    @property
    def epoch(self) -> int:
        """Number of steps that use every sample once; 1 if samples are never used again."""
        return 1

    def start(self) -> Float[Tensor, "*batch d k"]:
        """The first point, Haar distributed; every call returns a new copy."""
        if self._start is None:
            self._start = self._drawn().to(self.device, torch.float32)
        return self._start.clone()

    def _drawn(self) -> Float[Tensor, "*batch d k"]:
        *batch, d, k = self.shape
        generator = spawn(self.seed, "start")
        draws = [haar(d, k, generator=generator) for _ in range(torch.Size(batch).numel())]
        return torch.stack(draws).reshape(self.shape)

    @abstractmethod
    def gradient(self, X: Float[Tensor, "*batch d k"], step: int) -> Float[Tensor, "*batch d k"]:
        """The gradient of step number `step` at X, times `unit`."""

    def factors(self, X: Float[Tensor, "d k"], step: int) -> Factors | None:
        """Thin A, B with `gradient` = A B^T; None if the gradient is not such a product."""
        return None

    def is_factored(self) -> bool:
        """Whether gradients come in `factors`."""
        return type(self).factors is not Problem.factors

    @abstractmethod
    def loss(self, X: Float[Tensor, "*batch d k"]) -> float:
        """The whole loss at a point of the manifold, in float64."""

    def fresh(self, order: int = 0) -> "Problem":
        """The problem for one run: a new object if gradients have state or batches an order.

        Args:
            order: Number of the order of the batches. It does not change the start, except for a
                loss with many minima.
        """
        return self

    def normalise(self) -> None:
        """Set `unit` by the first gradient at the start."""
        X = self.start()
        self.unit = 1.0
        self.unit = 1 / generator_norm(X, self.fresh().gradient(X, 0))


def generator_norm(X: Float[Tensor, "*batch d k"], G: Float[Tensor, "*batch d k"]) -> float:
    r"""The largest $\|G X^\top - X G^\top\|_2$ of the matrices, by power iterations."""
    v = torch.ones(*X.shape[:-1], 1, dtype=X.dtype, device=X.device)
    v[..., ::2, :] = -0.5  # a vector unrelated to any of the problems
    norm = v.new_zeros(())
    for _ in range(POWER_STEPS):
        v = v / torch.linalg.vector_norm(v, dim=-2, keepdim=True).clamp(min=1e-30)
        v = G @ (X.mT @ v) - X @ (G.mT @ v)
        norm = torch.linalg.vector_norm(v, dim=-2).amax()
    return float(norm)


@torch.no_grad()
def on_manifold(
    X: Float[Tensor, "*batch d k"],
) -> tuple[Float[Tensor, "*batch d k"] | None, float | None]:
    r"""The nearest orthonormal matrices in float64, and $\max\|X^\top X - I\|_F / \sqrt k$.

    The loss is evaluated at the nearest point, so a method neither gains nor loses by leaving the
    manifold. Newton-Schulz iterations find this point by few products, without an SVD, if
    $R = X^\top X - I$ has a spectral norm below one; $\|R^2\|_F^{1/2}$ is a bound on that norm. For
    other points the result is None; if the distance is not finite, it is None, too.

    Example:
        >>> Y, error = on_manifold(torch.eye(3, 2) * 1.01)
        >>> bool(torch.allclose(Y, torch.eye(3, 2, dtype=torch.float64))), round(error, 4)
        (True, 0.0201)
    """
    Y = X.detach().double()
    I = torch.eye(X.shape[-1], dtype=Y.dtype, device=Y.device)
    first = None
    with full_precision():
        for _ in range(30):
            residual = Y.mT @ Y - I
            error = float(_frobenius(residual))
            if first is None:
                first = error / X.shape[-1] ** 0.5
            if not error < 1 and not float(_frobenius(residual @ residual)) < 1:  # true for NaN
                return None, first if first < float("inf") else None
            if error < 1e-11 * X.shape[-1] ** 0.5:
                break
            Y = Y - Y @ residual / 2
            if error**2 < 1e-11 * X.shape[-1] ** 0.5:  # a bound on the remaining error
                break
    return Y, first


def _frobenius(A: Float[Tensor, "*batch k k"]) -> Float[Tensor, ""]:
    return torch.linalg.matrix_norm(A).amax()
