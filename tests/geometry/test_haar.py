import math

import numpy as np
import pytest
import torch

from helpers import EPS, STIEFEL_SHAPES, assert_close, randn
from skewflow.geometry import check_special, haar, orthogonality_error

SAMPLES = 20_000
FALSE_ALARM = 1e-6
"""Chance that a correct sampler fails one of these checks at a fresh seed; ours are fixed."""
Z_LIMIT = 4.9
"""Two-sided normal quantile of FALSE_ALARM."""
# Dvoretzky, Kiefer, Wolfowitz and Massart: P(D > x) <= 2 exp(-2 n x^2), for every n.
KS_LIMIT = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * SAMPLES))


def ks_distance(values, cdf):
    """Largest gap between the empirical distribution of `values` and `cdf`."""
    F, n = cdf(np.sort(values)), len(values)
    return max(np.abs(F - np.arange(n) / n).max(), np.abs(F - np.arange(1, n + 1) / n).max())


def uniform_cdf(x):
    return (x + 1) / 2


def z_score(values, mean, variance):
    """Deviation of the sample mean in its exact standard deviations."""
    return (np.mean(values) - mean) / math.sqrt(variance / len(values))


@pytest.fixture(scope="module")
def rotations_and_reflections():
    generator = torch.Generator().manual_seed(1)
    return haar(3, batch=(SAMPLES,), generator=generator, dtype=torch.float64).numpy()


@pytest.mark.parametrize("d, k", STIEFEL_SHAPES)
@pytest.mark.parametrize("dtype", EPS, ids=str)
def test_columns_are_orthonormal(d, k, dtype, generator):
    X = haar(d, k, generator=generator, dtype=dtype)
    assert X.shape == (d, k)
    assert X.dtype == dtype
    assert_close("X^T X", torch.eye(k), X.double().mT @ X.double(), dtype)


def test_k_is_d_when_omitted(generator):
    assert haar(4, generator=generator).shape == (4, 4)


@pytest.mark.parametrize("dtype", EPS, ids=str)
@pytest.mark.parametrize("d", [1, 2, 3, 8])
def test_special_points_have_determinant_plus_one(d, dtype, generator):
    X = haar(d, special=True, batch=(50,), generator=generator, dtype=dtype)
    assert check_special(X)


@pytest.mark.parametrize("batch", [(), (1,), (3,), (2, 5)])
@pytest.mark.parametrize("special", [False, True])
def test_batch_dimensions_lead(batch, special, generator):
    X = haar(4, special=special, batch=batch, generator=generator, dtype=torch.float64)
    assert X.shape == (*batch, 4, 4)
    assert orthogonality_error(X).max() < 1e-13
    assert len({x.numpy().tobytes() for x in X.reshape(-1, 4, 4)}) == math.prod(batch)


def test_large_rotations_have_no_lost_column(generator):
    X = haar(600, special=True, batch=(2,), generator=generator)
    assert X.dtype == torch.float32
    assert check_special(X)
    sign, log = torch.linalg.slogdet(X.double())
    assert sign.tolist() == [1.0, 1.0]
    assert log.abs().max() < 1e-3


def test_every_entry_of_a_point_of_o3_is_uniform(rotations_and_reflections):
    """Archimedes: a coordinate of a uniform point of the sphere in R^3 is uniform on [-1, 1]."""
    for i in range(3):
        for j in range(3):
            assert ks_distance(rotations_and_reflections[:, i, j], uniform_cdf) < KS_LIMIT


@pytest.mark.parametrize("k", [1, 2])
def test_every_entry_of_a_point_of_the_stiefel_manifold_is_uniform(k, generator):
    X = haar(3, k, batch=(SAMPLES,), generator=generator, dtype=torch.float64).numpy()
    for i in range(3):
        for j in range(k):
            assert ks_distance(X[:, i, j], uniform_cdf) < KS_LIMIT


def test_first_entry_has_the_moments_of_haar_measure(rotations_and_reflections):
    """On O(d): mean 0, second moment 1/d, fourth 3/(d(d+2)); on O(3) the eighth is 1/9."""
    x = rotations_and_reflections[:, 0, 0]
    assert abs(z_score(x, 0, 1 / 3)) < Z_LIMIT
    assert abs(z_score(x**2, 1 / 3, 1 / 5 - 1 / 9)) < Z_LIMIT
    assert abs(z_score(x**4, 3 / (3 * 5), 1 / 9 - 1 / 25)) < Z_LIMIT


def test_plain_qr_is_not_haar_and_these_checks_see_it(generator):
    """Householder's Q has a first entry that is never positive: the sign must be fixed."""
    raw = torch.linalg.qr(randn(SAMPLES, 3, 3, generator=generator)).Q[:, 0, 0].numpy()
    assert (raw <= 0).all()
    assert abs(z_score(raw, 0, 1 / 3)) > 20 * Z_LIMIT
    assert ks_distance(raw, uniform_cdf) > 20 * KS_LIMIT


def test_entries_of_different_columns_are_uncorrelated(rotations_and_reflections):
    """E[X_00 X_11] = 0; E[X_00^2 X_11^2] = (d+1) / ((d-1) d (d+2)) = 2/15 on O(3)."""
    X = rotations_and_reflections
    assert abs(z_score(X[:, 0, 0] * X[:, 1, 1], 0, 2 / 15)) < Z_LIMIT


def test_determinant_takes_both_signs_equally_often(rotations_and_reflections):
    assert abs(z_score(np.linalg.det(rotations_and_reflections), 0, 1)) < Z_LIMIT


def test_trace_has_gaussian_moments_on_o8(generator):
    """E[tr^2n] = (2n - 1)!! on O(d) for 2n <= d (Diaconis and Shahshahani)."""
    X = haar(8, batch=(SAMPLES,), generator=generator, dtype=torch.float64)
    trace = X.diagonal(dim1=-2, dim2=-1).sum(-1).numpy()
    assert abs(z_score(trace, 0, 1)) < Z_LIMIT
    assert abs(z_score(trace**2, 1, 3 - 1)) < Z_LIMIT
    assert abs(z_score(trace**4, 3, 105 - 9)) < Z_LIMIT


def test_angle_of_a_special_point_of_o3_has_density_one_minus_cosine(generator):
    X = haar(3, special=True, batch=(SAMPLES,), generator=generator, dtype=torch.float64)
    trace = X.diagonal(dim1=-2, dim2=-1).sum(-1).numpy()
    angle = np.arccos(np.clip((trace - 1) / 2, -1, 1))
    assert ks_distance(angle, lambda a: (a - np.sin(a)) / math.pi) < KS_LIMIT


def test_angle_of_a_special_point_of_o2_is_uniform(generator):
    X = haar(2, special=True, batch=(SAMPLES,), generator=generator, dtype=torch.float64).numpy()
    angle = np.arctan2(X[:, 0, 1], X[:, 0, 0])
    assert ks_distance(angle / math.pi, uniform_cdf) < KS_LIMIT


@pytest.mark.parametrize("special", [False, True])
def test_same_seed_gives_the_same_bits(special):
    draws = [
        haar(5, special=special, batch=(3,), generator=torch.Generator().manual_seed(seed))
        for seed in (7, 7, 8)
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_a_generator_leaves_the_global_state_alone(generator):
    before = torch.get_rng_state()
    haar(5, generator=generator)
    assert torch.equal(before, torch.get_rng_state())


def test_without_a_generator_the_global_seed_counts():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        X = haar(5)
        torch.manual_seed(3)
        assert torch.equal(X, haar(5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precisions_are_rounded_float32_draws(dtype):
    low, single = (
        haar(5, 3, generator=torch.Generator().manual_seed(0), dtype=t)
        for t in (dtype, torch.float32)
    )
    assert torch.equal(low, single.to(dtype))


def test_dtype_is_torchs_default_when_omitted(generator):
    assert haar(3, generator=generator).dtype == torch.get_default_dtype()
