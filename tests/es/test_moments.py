"""Mergeable moments: the same as those of all vectors, and a guard for constants."""

import numpy as np
import pytest
import torch

from helpers import assert_close
from skewflow.errors import CheckpointError, ShapeError
from skewflow.es import Moments


def test_merged_moments_are_those_of_all_vectors():
    rows = np.random.default_rng(0).normal([1e3, 0.0, -5.0], [1e-2, 1.0, 30.0], (50, 3))
    merged = Moments.of(rows[:1])
    for part in (rows[1:2], rows[2:30], rows[30:]):
        merged = merged.merge(Moments.of(part))
    assert merged.count == 50
    assert_close("mean", rows.mean(axis=0), merged.mean)
    assert_close("squares", rows.var(axis=0) * 50, merged.squares)


def test_the_scale_is_one_over_the_deviation_and_zero_for_a_constant():
    rows = np.random.default_rng(0).normal(size=(40, 4))
    rows[:, 1] = 0.1  # its mean is not exactly 0.1
    rows[:, 2] = 1e6 + 1e-3 * rows[:, 2]  # varies less than it can be told apart
    scale = Moments.of(rows[:7]).merge(Moments.of(rows[7:])).scale()
    assert scale[1] == scale[2] == 0.0
    assert_close("scale", 1 / rows[:, [0, 3]].std(axis=0), scale[[0, 3]])


def test_float32_rows_are_summed_in_float64():
    rows = np.full((10, 1), 16_777_216.0, dtype=np.float32)
    rows[1::2] += 2.0
    assert Moments.of(rows).squares.item() == 10.0


def test_a_checkpoint_gives_the_same_moments(tmp_path):
    moments = Moments.of(np.random.default_rng(0).normal(size=(4, 3)))
    torch.save(moments.state_dict(), tmp_path / "m")
    again = Moments.from_state_dict(torch.load(tmp_path / "m", weights_only=True))
    assert again.count == 4
    assert (again.mean == moments.mean).all() and (again.squares == moments.squares).all()


@pytest.mark.bad_input
def test_vectors_of_other_sizes_are_refused():
    a, b = Moments.of(np.ones((1, 2))), Moments.of(np.ones((1, 3)))
    with pytest.raises(ShapeError, match="got sizes 2 and 3. Observations must not change"):
        a.merge(b)
    with pytest.raises(ShapeError, match=r"at least one row: got shape \(0, 3\)"):
        Moments.of(np.ones((0, 3)))
    with pytest.raises(CheckpointError, match="KeyError on 'mean'"):
        Moments.from_state_dict({"count": 1})
