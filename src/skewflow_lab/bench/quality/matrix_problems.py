"""Problems whose gradients are exact: Procrustes, PCA, Brockett, quadratic assignment."""

from copy import copy

import torch
from jaxtyping import Float
from torch import Tensor

from skewflow.geometry import haar

from ...runs.seeds import spawn
from .problem import Problem


class Procrustes(Problem):
    r"""$\min \|X A - B\|_F^2 / (2 d)$ with Gaussian A and B, one problem or a batch of them.

    RSDM's paper takes n = p = 2000, landing's 200 matrices of 100 rows. The start lies in the
    component of O(d) that has the solution.
    """

    def __init__(
        self, d: int, batch: tuple[int, ...] = (), *, device: torch.device | str, seed: int = 0
    ) -> None:
        super().__init__((*batch, d, d), device, seed)
        g = spawn(seed, "procrustes")
        A, B = (torch.randn(*self.shape, generator=g).to(self.device) for _ in range(2))
        self.A, self.B = A, B
        self._target = B.double() @ A.double().mT
        self._constant = float(A.double().square().sum() + B.double().square().sum())
        values = torch.linalg.svdvals(self._target)
        self.optimum = (self._constant - 2 * float(values.sum())) / (2 * d)
        self._sign = torch.linalg.slogdet(self._target).sign.float().cpu()
        self.normalise()

    def _drawn(self) -> Float[Tensor, "*batch d d"]:
        X = super()._drawn()
        X[..., 0] *= (torch.linalg.slogdet(X).sign * self._sign).unsqueeze(-1)
        return X

    def gradient(self, X: Float[Tensor, "*batch d d"], step: int) -> Float[Tensor, "*batch d d"]:
        """(X A - B) A^T / d."""
        return ((X @ self.A).sub_(self.B) @ self.A.mT).mul_(self.unit / X.shape[-1])

    def loss(self, X: Float[Tensor, "*batch d d"]) -> float:
        """The loss, by the norm of A, which X A has, too."""
        return (self._constant - 2 * float((X * self._target).sum())) / (2 * X.shape[-1])


class PCA(Problem):
    r"""$\min -\mathrm{tr}(X^\top A X) / 2$ with $A = Q D Q^\top$ of a condition number.

    RSDM and POGO take n = 2000, p = 1500 and condition number 1000; D is spaced evenly on a
    logarithmic scale. Their codes multiply by Q on both sides, so their A has another spectrum.
    """

    def __init__(
        self,
        d: int,
        k: int,
        condition: float = 1000.0,
        *,
        device: torch.device | str,
        seed: int = 0,
    ) -> None:
        super().__init__((d, k), device, seed)
        Q = haar(d, generator=spawn(seed, "pca"), dtype=torch.float64).to(self.device)
        values = torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), d)
        values = values.double().to(self.device)
        self._A = (Q * values) @ Q.mT
        self.A = self._A.float()
        self.optimum = -float(values[:k].sum()) / 2
        self.normalise()

    def gradient(self, X: Float[Tensor, "d k"], step: int) -> Float[Tensor, "d k"]:
        """-A X."""
        return (self.A @ X).mul_(-self.unit)

    def loss(self, X: Float[Tensor, "d k"]) -> float:
        """Minus half of the captured variance."""
        return -float((X * (self._A @ X)).sum()) / 2


class Brockett(Problem):
    r"""$\min \mathrm{tr}(X^\top A X N)$ on O(d), with $N = \mathrm{diag}(d, \dots, 1) / d$.

    Brockett (1991); A is Gaussian, symmetric, of entries with variance 1 / d. The columns of the
    solution are the eigenvectors in order.
    """

    def __init__(self, d: int, *, device: torch.device | str, seed: int = 0) -> None:
        super().__init__((d, d), device, seed)
        A = torch.randn(d, d, generator=spawn(seed, "brockett"), dtype=torch.float64)
        self._A = ((A + A.mT) / (2 * d) ** 0.5).to(self.device)
        self._N = torch.arange(d, 0, -1, dtype=torch.float64, device=self.device) / d
        self.A, self.N = self._A.float(), self._N.float()
        self.optimum = float((torch.linalg.eigvalsh(self._A) * self._N).sum())
        self.normalise()

    def gradient(self, X: Float[Tensor, "d d"], step: int) -> Float[Tensor, "d d"]:
        """2 A X N."""
        return (self.A @ X).mul_(self.N * (2 * self.unit))

    def loss(self, X: Float[Tensor, "d d"]) -> float:
        """The weighted sum of Rayleigh quotients."""
        return float((X * (self._A @ X) * self._N).sum())


class Assignment(Problem):
    r"""$\min \mathrm{tr}(A^\top (X \circ X) B (X \circ X)^\top) / 2$ on O(d), Gaussian A and B.

    This is RSDM's relaxation of a quadratic assignment problem, with n = 1000. It has many local
    minima and its optimum is unknown, so the best point of all methods counts as the optimum. The
    minimum that a run finds is a matter of chance, so every order has another start.
    """

    def __init__(self, d: int, *, device: torch.device | str, seed: int = 0) -> None:
        super().__init__((d, d), device, seed)
        g = spawn(seed, "assignment")
        self.A, self.B = (torch.randn(d, d, generator=g).to(self.device) for _ in range(2))
        self._A, self._B = self.A.double(), self.B.double()
        self.normalise()

    def fresh(self, order: int = 0) -> "Assignment":
        """The same loss, with the start of this number."""
        if order == 0:
            return self
        own = copy(self)
        X = haar(self.shape[-1], generator=spawn(self.seed, "start", order))
        own._start = X.to(self.device, torch.float32)
        return own

    def gradient(self, X: Float[Tensor, "d d"], step: int) -> Float[Tensor, "d d"]:
        """X o (A^T S B + A S B^T) with S = X o X."""
        S = X * X
        return (self.A.mT @ (S @ self.B)).add_(self.A @ (S @ self.B.mT)).mul_(X).mul_(self.unit)

    def loss(self, X: Float[Tensor, "d d"]) -> float:
        """The objective."""
        S = X * X
        return float(((self._A.mT @ (S @ self._B)) * S).sum()) / 2
