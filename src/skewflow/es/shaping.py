"""Shaping: from the returns of a generation to the weights of its directions."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from .. import _validate
from ..errors import NonFiniteReturnError, ShapeError

Returns = Float[np.ndarray, "n 2"]
Weights = Float[np.ndarray, " n"]


def centred_ranks(returns: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """The ranks of all entries, from -1/2 (smallest) to 1/2 (not in the paper).

    Equal entries have their mean rank. This is the shaping of Salimans et al. (2017): only the
    order of the returns matters, so no single return can outweigh the others.

    Example:
        >>> centred_ranks(np.array([[10.0, 3.0], [3.0, 99.0]]))
        array([[ 0.16666667, -0.33333333],
               [-0.33333333,  0.5       ]])
    """
    flat = returns.ravel()
    if flat.size < 2:
        return np.zeros_like(returns, dtype=np.float64)
    _, inverse, counts = np.unique(flat, return_inverse=True, return_counts=True)
    last = np.cumsum(counts) - 1
    mean_rank = last - (counts - 1) / 2
    ranks: Float[np.ndarray, "*shape"] = mean_rank[inverse].reshape(returns.shape)
    return ranks / (flat.size - 1) - 0.5


def _plain(returns: Returns, sigma: float) -> Weights:
    return (returns[:, 0] - returns[:, 1]) / (2 * sigma * len(returns))


def _ars(returns: Returns, sigma: float) -> Weights:
    with np.errstate(over="ignore"):
        deviation = returns.std()
    if not np.isfinite(deviation):
        raise NonFiniteReturnError(
            "`returns` must have a finite standard deviation: that of numbers up to "
            f'{np.abs(returns).max():.0e} overflows. Scale them down, or use "ranks".'
        )
    if deviation == 0:
        return np.zeros(len(returns))
    return (returns[:, 0] - returns[:, 1]) / (deviation * len(returns))


def _ranks(returns: Returns, sigma: float) -> Weights:
    ranks = centred_ranks(returns)
    return (ranks[:, 0] - ranks[:, 1]) / (2 * len(returns))


SHAPINGS: dict[str, Callable[[Returns, float], Weights]] = {
    "plain": _plain,
    "ars": _ars,
    "ranks": _ranks,
}
"""The formulas of `direction_weights` by name."""


def direction_weights(
    returns: Returns, sigma: float, shaping: str = "ars", top: int | None = None
) -> Weights:
    r"""Weights w for which $\sum_i w_i \delta_i$ is the ascent direction (not in the paper).

    - "plain" is $(r^+ - r^-) / (2\sigma n)$. For Gaussian $\delta$ it is an unbiased estimate of
      the gradient of the function averaged over $N(0, \sigma^2)$ around the centre, which for a
      linear function is its gradient.
    - "ars" is $(r^+ - r^-) / (n\,\mathrm{std}(r))$, as in Mania et al. (2018); if all returns are
      equal the weights are zero.
    - "ranks" is "plain" without $\sigma$, with `centred_ranks` in place of the returns.

    Args:
        returns: A row $(r^+, r^-)$ for each direction; larger is better.
        sigma: Standard deviation of the perturbations, per entry.
        shaping: "plain", "ars" or "ranks".
        top: Use only this number of directions, those with the largest $\max(r^+, r^-)$ (the first
            ones if these are equal); n is then this number. It makes the estimate biased.

    Example:
        >>> direction_weights(np.array([[3.0, 1.0], [0.0, 4.0]]), 0.5, "plain")
        array([ 1., -2.])
        >>> direction_weights(np.array([[3.0, 1.0], [0.0, 4.0]]), 0.5, "plain", top=1)
        array([ 0., -4.])
    """
    _validate.one_of(shaping, tuple(SHAPINGS), "shaping")
    n = len(returns)
    if returns.shape != (n, 2) or n < 1:
        raise ShapeError(
            f"`returns` must have the shape (n, 2): got {returns.shape}. Pass one row for each "
            "direction."
        )
    if not np.isfinite(returns).all():
        raise NonFiniteReturnError(
            f"`returns` must be finite: {int((~np.isfinite(returns)).sum())} of {returns.size} are "
            "not. Give a failed evaluation a large but finite loss."
        )
    check_top(top, n)
    if top is None:
        return SHAPINGS[shaping](returns, sigma)
    best = np.sort(np.argsort(-returns.max(axis=1), kind="stable")[:top])
    weights = np.zeros(n)
    weights[best] = SHAPINGS[shaping](returns[best], sigma)
    return weights


def check_top(top: int | None, num_directions: int) -> None:
    """Check that `top` is None or from 1 to the number of directions."""
    if top is not None and not (isinstance(top, int) and 1 <= top <= num_directions):
        raise ValueError(
            f"`top` must be a whole number from 1 to the {num_directions} directions: got {top!r}. "
            "None uses them all."
        )
