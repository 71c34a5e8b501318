"""Problems whose gradients are those of batches: online PCA, ICA, a wide linear network."""

from abc import abstractmethod
from copy import copy

import torch
from jaxtyping import Float
from torch import Tensor

from skewflow.geometry import haar

from ...runs.seeds import spawn
from .problem import Factors, Problem


class Batches(Problem):
    """A problem whose gradients are products of two thin matrices, one row for each sample.

    Args:
        shape: Shape of the point.
        batch: Number of samples of a gradient.
        device: Device of the data.
        seed: Seed of the data and their order.
    """

    deterministic = False
    data: Tensor
    """The samples, one in each row."""

    def __init__(
        self, shape: tuple[int, int], batch: int, *, device: torch.device | str, seed: int
    ) -> None:
        super().__init__(shape, device, seed)
        self.batch = batch
        self._number, self._epoch = 0, -1

    @property
    def epoch(self) -> int:
        """Number of steps that use the samples once; an incomplete last batch is not used."""
        return len(self.data) // self.batch

    def rows(self, step: int) -> Tensor:
        """Indices of the samples of a step; every epoch has another order."""
        epoch, place = divmod(step, self.epoch)
        if epoch != self._epoch:
            g = spawn(self.seed, "order", self._number, epoch)
            order = torch.randperm(len(self.data), generator=g)
            self._epoch, self._order = epoch, order.to(self.device)
        return self._order[place * self.batch : (place + 1) * self.batch]

    def fresh(self, order: int = 0) -> "Batches":
        """The same data in another order."""
        own = copy(self)
        own._number, own._epoch = order, -1
        return own

    def gradient(self, X: Float[Tensor, "d k"], step: int) -> Float[Tensor, "d k"]:
        """The product of the factors."""
        A, B = self.factors(X, step)
        return A @ B.mT

    @abstractmethod
    def factors(self, X: Float[Tensor, "d k"], step: int) -> Factors:
        """The samples, and the derivatives of the loss by their images."""


class OnlinePCA(Batches):
    r"""$\min -\|Z X\|_F^2 / (2 n)$, in batches of the samples Z.

    The data are landing's: 15000 samples of 5000 features, a matrix of rank k whose features are
    scaled to variance one, and noise of standard deviation 0.1.
    """

    def __init__(
        self,
        samples: int,
        d: int,
        k: int,
        batch: int,
        noise: float = 0.1,
        *,
        device: torch.device | str,
        seed: int = 0,
    ) -> None:
        super().__init__((d, k), batch, device=device, seed=seed)
        g = spawn(seed, "online-pca", k)
        U, V, E = (torch.randn(m, n, generator=g) for m, n in ((samples, k), (d, k), (samples, d)))
        U, V, E = (M.to(self.device) for M in (U, V, E))
        U, V = torch.linalg.qr(U).Q, torch.linalg.qr(V).Q
        L = (U * torch.linspace(1, 0.5, k, device=self.device)) @ V.mT
        L = (L - L.mean(0)) / L.std(0)
        self.data = L.add_(E, alpha=noise)
        self._covariance = _covariance(self.data)
        values = torch.linalg.eigvalsh(self._covariance)
        self.optimum = -float(values[-k:].sum()) / 2
        self.normalise()

    def factors(self, X: Float[Tensor, "d k"], step: int) -> Factors:
        """-Z^T / b and (Z X)^T."""
        Z = self.data.index_select(0, self.rows(step))
        return Z.mT * (-self.unit / self.batch), (Z @ X).mT

    def loss(self, X: Float[Tensor, "d k"]) -> float:
        """Minus half of the captured variance of all samples."""
        return -float((X * (self._covariance @ X)).sum()) / 2


class ICA(Batches):
    r"""$\min \frac1n \sum \log\cosh(Z X)$ over O(d), Z a whitened mixture of Laplace sources.

    This is landing's simulated benchmark, with more channels and in batches. The optimum is the one
    near the true sources, which the fixed-point iteration of FastICA finds in a few rounds.
    """

    def __init__(
        self,
        samples: int,
        d: int,
        batch: int,
        *,
        device: torch.device | str,
        seed: int = 0,
    ) -> None:
        super().__init__((d, d), batch, device=device, seed=seed)
        g = spawn(seed, "ica")
        u = torch.rand(samples, d, generator=g, dtype=torch.float64).to(self.device) - 0.5
        sources = -u.sign() * torch.log1p(-2 * u.abs())
        mixing = torch.randn(d, d, generator=g, dtype=torch.float64).to(self.device)
        mixed = sources @ mixing.mT
        values, V = torch.linalg.eigh(mixed.mT @ mixed / samples)
        whitening = (V / values.sqrt()) @ V.mT
        self._data = mixed @ whitening
        self.data = self._data.float()
        self.solution = self._polished(whitening @ mixing)
        self.optimum = self.loss(self.solution)
        self.normalise()

    def _polished(self, W: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
        """The result of some rounds of symmetric FastICA with tanh (Hyvärinen 1999)."""
        for _ in range(20):
            U, _, Vh = torch.linalg.svd(W)
            X = U @ Vh
            T = torch.tanh(self._data @ X)
            W = X * (1 - T.square()).mean(0) - self._data.mT @ T / len(T)
        return X

    def factors(self, X: Float[Tensor, "d d"], step: int) -> Factors:
        """Z^T / b and tanh(Z X)^T."""
        Z = self.data.index_select(0, self.rows(step))
        return Z.mT * (self.unit / self.batch), (Z @ X).tanh_().mT

    def loss(self, X: Float[Tensor, "d d"]) -> float:
        """The mean over all samples, by a formula that does not overflow."""
        Y = (self._data @ X).abs()
        return float((Y + torch.log1p(torch.exp(-2 * Y))).sum()) / len(Y)


class WideLinear(Batches):
    r"""$\min E\|z X - z X^*\|^2 / 2$: an orthogonal layer learns another one from its outputs.

    The layer has 4096 units, and batches have 64 to 512 samples. The inputs come from a pool of
    Gaussian samples with standard deviations between 1 and 0.3; the loss is the exact expectation.
    """

    def __init__(
        self, d: int, batch: int, pool: int = 64, *, device: torch.device | str, seed: int = 0
    ) -> None:
        super().__init__((d, d), batch, device=device, seed=seed)
        g = spawn(seed, "wide-linear")
        deviations = torch.linspace(1, 0.3, d).to(self.device)
        self.data = torch.randn(pool * batch, d, generator=g).to(self.device) * deviations
        target = haar(d, special=True, generator=g).to(self.device)
        self.labels = self.data @ target
        self._target, self._variances = target.double(), deviations.double().square()
        self.optimum = 0.0
        self.normalise()

    def _drawn(self) -> Float[Tensor, "d d"]:
        return haar(self.shape[-1], special=True, generator=spawn(self.seed, "start"))

    def factors(self, X: Float[Tensor, "d d"], step: int) -> Factors:
        """Z^T / b and (Z X - Z X*)^T."""
        rows = self.rows(step)
        Z = self.data.index_select(0, rows)
        return Z.mT * (self.unit / self.batch), (Z @ X).sub_(self.labels.index_select(0, rows)).mT

    def loss(self, X: Float[Tensor, "d d"]) -> float:
        """Half the expected squared distance of the outputs."""
        return float(((X - self._target).square().sum(-1) * self._variances).sum()) / 2


def _covariance(data: Tensor) -> Tensor:
    """The covariance in float64, a few rows at a time, because a copy would be twice the data."""
    total = torch.zeros(data.shape[1], data.shape[1], dtype=torch.float64, device=data.device)
    for first in range(0, len(data), 2048):
        part = data[first : first + 2048].double()
        total.addmm_(part.mT, part)
    return total / len(data)
