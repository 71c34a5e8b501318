"""A Mahalanobis metric U D U^T as a scikit-learn estimator."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from ...optim import FlowAdam, FlowSGD
from .._matrices import limit, positive, scale
from .losses import LOSSES

OPTIMIZERS = {"adam": FlowAdam, "sgd": FlowSGD}
"""How the directions U step."""

Array = NDArray[Any]


class MahalanobisMetric(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]  # scikit-learn is untyped
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    r"""Learn $d(x, y)^2 = (x - y)^\top M (x - y)$ that brings points of one class together.

    $M = U D U^\top$ with U in ST(d, k), stepped by `FlowAdam` or `FlowSGD`, and a positive
    diagonal D, whose logarithm is stepped by Adam. So directions and scales are separate, M has
    rank k at every step, and a batch costs O(bdk): sets are possible for which
    `sklearn.neighbors.NeighborhoodComponentsAnalysis`, with its n x n distances, has no memory. U
    starts at the leading principal directions, D at equal scales. Not in the paper.

    Args:
        n_components: k; the number of features when None.
        loss: "nca", "triplets" or "pairs".
        optimizer: "adam" (`FlowAdam`) or "sgd" (`FlowSGD` with momentum 0.9).
        learning_rate: Step size at the start; it falls to zero along a cosine.
        steps: Batches.
        batch_size: Points in a batch, drawn without replacement; all if there are fewer.
        random_state: Seed of the batches.

    Attributes:
        components_: $D^{1/2} U^\top$ of shape (k, d): `transform` is ``X @ components_.T``.
        directions_: U.
        scales_: The diagonal of D.
        losses_: The loss of every batch.

    Example:
        >>> from sklearn.datasets import load_wine
        >>> from sklearn.preprocessing import scale
        >>> X, y = load_wine(return_X_y=True)
        >>> metric = MahalanobisMetric(n_components=2, steps=50).fit(scale(X), y)
        >>> metric.transform(scale(X)).shape, metric.get_mahalanobis_matrix().shape
        ((178, 2), (13, 13))
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        loss: str = "nca",
        optimizer: str = "adam",
        learning_rate: float = 0.01,
        steps: int = 200,
        batch_size: int = 512,
        random_state: Any = 0,
    ) -> None:
        self.n_components = n_components
        self.loss = loss
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.steps = steps
        self.batch_size = batch_size
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "MahalanobisMetric":
        """Learn the metric from points (n, d) and their classes.

        Raises:
            ValueError: If an option is wrong, there are fewer than two classes, or a class has one
                sample.
        """
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32), ensure_min_samples=2)
        check_classification_targets(y)
        scale(float(np.abs(X).max()), "X")
        k = self._check(X.shape[1])
        classes, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
        if len(classes) < 2:
            raise ValueError(
                f"`y` must have at least two classes: got 1 class, {classes[0]!r}. A metric needs "
                "points to tell apart."
            )
        if counts.min() < 2:
            raise ValueError(
                f"every class must have at least two samples: class {classes[counts.argmin()]!r} "
                "has one, and so no neighbour of its class. Remove it, or merge it with another."
            )
        data = torch.from_numpy(X - X.mean(0))
        U = torch.nn.Parameter(_principal_directions(data, k))
        start = 1 / max(float((data @ U.detach()).square().sum(1).mean()), 1e-300)
        log_scales = torch.nn.Parameter(torch.zeros(k, dtype=data.dtype))
        # Nearest points lie closer than the mean: this scale lets some, not all, count.
        root = (10 * start) ** 0.5
        self._train(data, torch.from_numpy(codes), U, log_scales, root)
        scales = root**2 * log_scales.detach().exp()
        self.directions_ = U.detach().numpy()
        self.scales_ = scales.numpy()
        self.components_ = (U.detach() * scales.sqrt()).mT.numpy()
        self._n_features_out = k
        return self

    @torch.enable_grad()
    def _train(
        self, data: torch.Tensor, y: torch.Tensor, U: Any, log_scales: Any, root: float
    ) -> None:
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1))
        momentum: dict[str, Any] = {"momentum": 0.9} if self.optimizer == "sgd" else {}
        optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam([log_scales], lr=self.learning_rate)
        ]
        if len(U) > 1:  # one feature has one direction
            steps = OPTIMIZERS[self.optimizer]
            rate = self.learning_rate
            optimizers += [steps([U], lr=rate, block_size="dense", seed=seed, **momentum)]
        size, order, self.losses_ = min(self.batch_size, len(data)), np.empty(0, int), []
        for step in range(self.steps):
            if len(order) < size:
                order = random.permutation(len(data))
            batch, order = torch.from_numpy(order[:size]), order[size:]
            Z = (data[batch] @ U) * (root * (log_scales / 2).exp())
            loss = LOSSES[self.loss](Z, y[batch])
            fall = float(1 + np.cos(np.pi * step / self.steps)) / 2
            for optimizer in optimizers:
                optimizer.zero_grad()
                optimizer.param_groups[0]["lr"] = self.learning_rate * fall
            loss.backward()  # type: ignore[no-untyped-call]
            for optimizer in optimizers:
                optimizer.step()
            self.losses_.append(float(loss.detach()))

    def transform(self, X: Any) -> Array:
        """The points in the k coordinates in which the metric is Euclidean."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        result: Array = X @ self.components_.T
        return result

    def get_mahalanobis_matrix(self) -> Array:
        """M = U D U^T, of shape (d, d) and rank k."""
        check_is_fitted(self)
        M: Array = self.components_.T @ self.components_
        return M

    def _check(self, d: int) -> int:
        for name, allowed in (("loss", LOSSES), ("optimizer", OPTIMIZERS)):
            if getattr(self, name) not in list(allowed):
                raise ValueError(
                    f"`{name}` must be one of {', '.join(map(repr, allowed))}: "
                    f"got {getattr(self, name)!r}."
                )
        limit(self.steps, "steps", 1)
        limit(self.batch_size, "batch_size", 2)
        positive(self.learning_rate, "learning_rate", "0.01")
        k = d if self.n_components is None else self.n_components
        if not isinstance(k, (int, np.integer)) or not 1 <= k <= d:
            raise ValueError(
                f"`n_components` must be between 1 and the number of features, {d}: got {k!r}."
            )
        return int(k)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _principal_directions(data: torch.Tensor, k: int) -> torch.Tensor:
    """The eigenvectors of the k largest eigenvalues of the covariance."""
    covariance = data.mT @ data / len(data)
    directions: torch.Tensor = torch.linalg.eigh(covariance).eigenvectors.flip(-1)[:, :k]
    return directions.contiguous()
