"""Properties for any sizes, by hypothesis."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import gaussian
from helpers import assert_close
from skewflow.samplers import HRegular, Uniform
from skewflow.tournaments import EdgeWeights, block_sizes, edge_probability
from skewflow.tournaments.edge_weights import edge_from_index
from skewflow.tournaments.theory import num_partitions


@st.composite
def sizes(draw):
    """Block sizes of at most nine rows, one of them at least 2, with few partitions."""
    chosen = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    chosen = [*chosen, draw(st.integers(2, 4))]
    return tuple(chosen) if sum(chosen) <= 8 else (2, 2)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(sizes=sizes(), seed=st.integers(0, 100))
def test_uniform_and_h_regular_are_unbiased_for_any_sizes(sizes, seed):
    d = sum(sizes)
    W = EdgeWeights.of(gaussian(d, torch.Generator().manual_seed(seed)))
    for sampler in (Uniform(sizes), HRegular(sizes), HRegular(sizes, horvitz_thompson=True)):
        law = sampler.law(W)
        assert len(law) == num_partitions(d, sizes)
        assert_close("sum of probabilities", 1.0, sum(p for _, p in law))
        assert_close("E[estimate]", W.dense(), sum(p * t.dense(W) for t, p in law))


@settings(deadline=None, derandomize=True)
@given(d=st.integers(2, 10_000), s=st.integers(2, 10_000))
def test_block_sizes_fill_the_rows_evenly(d, s):
    counts = block_sizes(d, min(s, d))
    assert sum(size * count for size, count in counts) == d
    assert max(size for size, _ in counts) - min(size for size, _ in counts) <= 1
    assert 0 < edge_probability(d, min(s, d)) <= 1


@settings(deadline=None, derandomize=True)
@given(d=st.integers(2, 1_000_000), where=st.floats(0, 1, exclude_max=True))
def test_an_edge_s_number_leads_back_to_it(d, where):
    index = int(where * (d * (d - 1) // 2))
    i, j = edge_from_index(torch.tensor([index]), d)[0].tolist()
    assert 0 <= i < j < d and i * (2 * d - i - 1) // 2 + j - i - 1 == index
