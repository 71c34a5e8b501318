"""From the returns of a generation to the weights of its directions."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from .. import _validate
from ..errors import NonFiniteReturnError, ShapeError

Returns = Float[np.ndarray, "n 2"]
Weights = Float[np.ndarray, " n"]


def centred_ranks(returns: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """The ranks of all entries, from -1/2 (the least) to 1/2; equal entries share their mean rank.

    The shaping of Salimans et al. (2017): only the order of the returns counts, so that one of them
    cannot outweigh the rest. Not in the paper.

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


def direction_weights(
    returns: Returns, sigma: float, shaping: str = "ars", top: int | None = None
) -> Weights:
    r"""Weights w for which $\sum_i w_i \delta_i$ is the ascent direction (not in the paper).

    - "plain": $(r^+ - r^-) / (2\sigma n)$, for Gaussian $\delta$ an unbiased estimate of the
      gradient of the function, averaged over $N(0, \sigma^2)$ around the centre; of a linear one,
      of its gradient itself.
    - "ars": $(r^+ - r^-) / (n\,\mathrm{std}(r))$, as in Mania et al. (2018); no step at all where
      all returns are equal.
    - "ranks": "plain" without $\sigma$, on `centred_ranks` in place of the returns.

    Args:
        returns: A row $(r^+, r^-)$ for each direction; larger is better.
        sigma: Length of the perturbations.
        shaping: One of the above.
        top: Use only as many directions, those with the largest $\max(r^+, r^-)$; n is their number
            then. Of equal ones the first are taken. The estimate is biased by this.

    Example:
        >>> direction_weights(np.array([[3.0, 1.0], [0.0, 4.0]]), 0.5, "plain")
        array([ 1., -2.])
        >>> direction_weights(np.array([[3.0, 1.0], [0.0, 4.0]]), 0.5, "plain", top=1)
        array([ 0., -4.])
    """
    _validate.one_of(shaping, tuple(SHAPINGS), "shaping")
    n = len(returns)
    if returns.shape != (n, 2) or n < 1:
        raise ShapeError(f"`returns` must have the shape (n, 2): got {returns.shape}.")
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
    """`top` is None or from 1 to the number of directions."""
    if top is not None and not (isinstance(top, int) and 1 <= top <= num_directions):
        raise ValueError(
            f"`top` must be a whole number from 1 to the {num_directions} directions: got {top!r}. "
            "None uses them all."
        )
