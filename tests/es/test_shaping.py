"""Returns become weights: exact values, invariances, and errors."""

import numpy as np
import pytest
from scipy.stats import rankdata

from helpers import assert_close
from skewflow.errors import NonFiniteReturnError, ShapeError
from skewflow.es import centred_ranks, direction_weights

RETURNS = np.random.default_rng(0).integers(0, 6, (9, 2)).astype(float)
"""With ties."""


def test_centred_ranks_are_those_of_scipy():
    ranks = (rankdata(RETURNS) - 1) / 17 - 0.5
    assert_close("ranks", ranks.reshape(9, 2), centred_ranks(RETURNS))
    assert centred_ranks(np.ones((1, 1))).item() == 0.0


def test_ranks_see_the_order_alone():
    bent = direction_weights(np.exp(3 * RETURNS), 0.1, "ranks")
    assert (bent == direction_weights(RETURNS, 0.7, "ranks")).all()


def test_ars_does_not_see_units():
    weights = direction_weights(RETURNS, 0.1, "ars")
    assert_close("weights", weights, direction_weights(100 * RETURNS + 7, 0.1, "ars"))
    assert_close("weights", (RETURNS[:, 0] - RETURNS[:, 1]) / (9 * RETURNS.std()), weights)


@pytest.mark.parametrize("shaping", ["ars", "ranks", "plain"])
def test_equal_returns_ask_for_no_step(shaping):
    assert not direction_weights(np.full((4, 2), 0.1), 0.1, shaping).any()


@pytest.mark.parametrize("shaping", ["ars", "ranks", "plain"])
def test_top_directions_are_shaped_as_if_alone(shaping):
    returns = np.array([[1.0, 2.0], [9.0, 0.0], [3.0, 4.0], [-5.0, 7.0]])
    weights = direction_weights(returns, 0.1, shaping, top=2)
    assert not weights[[0, 2]].any()
    assert (weights[[1, 3]] == direction_weights(returns[[1, 3]], 0.1, shaping)).all()


def test_of_equal_directions_the_first_are_taken():
    returns = np.array([[2.0, 0.0], [0.0, 2.0], [2.0, 1.0]])
    assert direction_weights(returns, 0.5, "plain", top=2).nonzero()[0].tolist() == [0, 1]


@pytest.mark.bad_input
def test_bad_returns_are_refused():
    with pytest.raises(NonFiniteReturnError, match="1 of 18 are not. Give a failed evaluation"):
        direction_weights(RETURNS + _nan(), 0.1)
    with pytest.raises(NonFiniteReturnError, match=r"up to 1e\+300 overflows. Scale them down, or"):
        direction_weights(np.array([[1e300, 0.0], [1.0, 2.0]]), 0.1, "ars")  # not a step of zero
    with pytest.raises(ShapeError, match=r"shape \(n, 2\): got \(2, 9\)"):
        direction_weights(RETURNS.T, 0.1)
    with pytest.raises(ValueError, match="from 1 to the 9 directions: got 10"):
        direction_weights(RETURNS, 0.1, top=10)
    with pytest.raises(ValueError, match="'plain', 'ars', 'ranks': got 'rank'"):
        direction_weights(RETURNS, 0.1, "rank")


def _nan():
    nan = np.zeros((9, 2))
    nan[3, 1] = np.nan
    return nan
