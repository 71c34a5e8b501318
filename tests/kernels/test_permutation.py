"""The keyed permutation behind fused steps: a permutation, and uniform over keys."""

from math import factorial

import pytest
import torch
from scipy.stats import chi2

from skewflow.kernels.permutation.reference import make_key, matching_at, order_at, permute
from skewflow.tournaments import round_robin

FALSE_ALARM = 1e-6


def keys(count, seed=0, stream=0):
    return make_key(torch.tensor(seed), torch.tensor(stream), torch.arange(count))


@pytest.mark.parametrize("d", [1, 2, 3, 5, 8, 63, 64, 65, 100, 1000, 4097])
def test_every_key_gives_a_permutation(d):
    for key in keys(20):
        assert sorted(permute(torch.arange(d), d, key).tolist()) == list(range(d))


def check_uniform(counts, cells, total):
    expected = total / cells
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    statistic += (cells - len(counts)) * expected  # outcomes never seen
    assert statistic < chi2.isf(FALSE_ALARM, cells - 1)


@pytest.mark.parametrize("d", [2, 3, 4, 5, 6])
def test_over_keys_all_orders_are_equally_likely(d):
    count = 100 * factorial(d)
    key = keys(count, seed=d)
    orders = torch.stack([permute(torch.full((count,), x), d, key) for x in range(d)], dim=1)
    codes = (orders * d ** torch.arange(d)).sum(1)
    check_uniform(codes.unique(return_counts=True)[1], factorial(d), count)


@pytest.mark.parametrize("d", [64, 100])
def test_over_keys_two_rows_go_to_every_pair_of_places(d):
    count = 20 * d * (d - 1)
    key = keys(count, seed=d)
    first, second = (permute(torch.full((count,), x), d, key) for x in (0, 1))
    check_uniform((first * d + second).unique(return_counts=True)[1], d * (d - 1), count)


@pytest.mark.parametrize("d", [2, 3, 4, 7, 8])
def test_a_sweep_is_a_relabelled_round_robin(d):
    n = len(round_robin(d))
    for sweep in range(3):
        planes = torch.zeros(d, d)
        for r in range(n):
            pairs, alone = matching_at(d, 1, 2, torch.tensor(sweep * n + r))
            assert sorted(pairs.flatten().tolist() + alone.tolist()) == list(range(d))
            i, j = pairs.sort(dim=-1).values.unbind(-1)
            planes[i, j] += 1
        assert torch.equal(planes, torch.ones(d, d).triu(1))


def test_seeds_streams_and_times_give_different_orders():
    base = order_at(50, 0, 0, torch.tensor(0))
    for seed, stream, time in [(1, 0, 0), (1 << 40, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 1 << 40)]:
        assert not torch.equal(base, order_at(50, seed, stream, torch.tensor(time)))
