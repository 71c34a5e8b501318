"""Random rotations tend to Haar measure on SO(d): moments by exact operators and quadrature."""

import math

import pytest
import torch

from helpers import assert_close, random_stiefel
from skewflow.errors import ShapeError
from skewflow.geometry import haar, orthogonality_error
from skewflow_lab.paper.haar.mixing import (
    haar_mixing,
    haar_moments,
    largest_spacing,
    random_rotations,
)


def givens_second_moments(d, num_steps):
    """E tr^2 after so many random Givens rotations of I: the trace of a power of E[R (x) R]."""
    operator = torch.zeros(d * d, d * d, dtype=torch.float64)
    angles = torch.arange(5, dtype=torch.float64) * 2 * math.pi / 5  # exact for degree two
    for i in range(d):
        for j in range(i):
            for a in angles:
                R = torch.eye(d, dtype=torch.float64)
                R[i, i] = R[j, j] = a.cos()
                R[i, j], R[j, i] = a.sin(), -a.sin()
                operator += torch.kron(R, R) / (5 * d * (d - 1) / 2)
    return torch.linalg.matrix_power(operator, num_steps).trace().item()


def test_single_rotations_have_the_exact_second_moment_on_the_way(generator):
    sizes = (2, 1, 1, 1)
    mixing = haar_mixing(5, sizes, num_steps=6, num_samples=20_000, generator=generator)
    for step in range(7):
        # Five standard errors, six looks: a false alarm in a million.
        allowed = 5 * mixing.moment_errors[step, 1].item() + 1e-9
        assert abs(mixing.moments[step, 1].item() - givens_second_moments(5, step)) < allowed
    assert mixing.rotations.tolist() == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("block_size", [2, 3, (2, 1, 1, 1, 1), (4, 2)])
def test_the_moments_tend_to_those_of_haar_measure(block_size, generator):
    mixing = haar_mixing(
        6, block_size, num_steps=80, num_samples=4000, generator=generator, record_every=80
    )
    error = (mixing.moments[-1] - haar_moments(6)).abs()
    assert (error < 5 * mixing.moment_errors[-1]).all()
    exact = largest_spacing(
        haar(6, special=True, batch=(4000,), generator=generator, dtype=torch.float64)
    )
    noise = (mixing.spacing_error[-1] ** 2 + exact.var() / 4000).sqrt()
    assert (mixing.spacing[-1] - exact.mean()).abs() < 5 * noise


@pytest.mark.parametrize("block_size, a_step", [(2, 3), (3, 6), ((4, 2), 7), (6, 15)])
def test_rotations_are_counted_by_planes(block_size, a_step, generator):
    mixing = haar_mixing(
        6, block_size, num_steps=5, num_samples=2, generator=generator, record_every=2
    )
    assert mixing.rotations.tolist() == [0, 2 * a_step, 4 * a_step, 5 * a_step]


def test_one_block_of_all_rows_is_haar_at_once(generator):
    mixing = haar_mixing(6, 6, num_steps=1, num_samples=4000, generator=generator)
    error = (mixing.moments[-1] - haar_moments(6)).abs()
    assert (error < 5 * mixing.moment_errors[-1]).all()


@pytest.mark.parametrize("block_size", [2, 3, (3, 2), (2, 1, 1, 1)])
def test_a_step_turns_only_inside_blocks_and_keeps_the_determinant(block_size, generator):
    X0 = random_stiefel(5, generator=generator, batch=(50,))
    before = X0.clone()
    X = random_rotations(X0, block_size, generator=generator)
    assert torch.equal(before, X0)
    assert orthogonality_error(X).max() < 1e-12
    assert_close("det", torch.linalg.det(X0), torch.linalg.det(X))
    changed = ((X @ X0.mT).abs() > 1e-9).sum((-2, -1))
    sizes = {2: (2, 2, 1), 3: (3, 2), (3, 2): (3, 2), (2, 1, 1, 1): (2, 1, 1, 1)}[block_size]
    assert (changed == sum(s * s for s in sizes)).all()


def weyl_moments(d):
    """E tr^p on SO(d) by Weyl's integration formula, on a grid that is exact for these degrees."""
    m = d // 2
    points = 16  # of a polynomial of degree <= 8 + 2 in each angle
    theta = (torch.arange(points, dtype=torch.float64) + 0.5) * 2 * math.pi / points
    grid = torch.cartesian_prod(*[theta] * m).reshape(-1, m)
    c = 2 * grid.cos()
    density = torch.ones(len(grid), dtype=torch.float64)
    for i in range(m):
        for j in range(i):
            density *= (c[:, i] - c[:, j]) ** 2
    if d % 2:
        density *= (2 - c).prod(-1)
    trace = c.sum(-1) + d % 2
    return [((density * trace**p).sum() / density.sum()).item() for p in (1, 2, 4)]


@pytest.mark.parametrize("d", [2, 3, 4, 5, 6, 7])
def test_haar_moments_are_weyls(d):
    assert_close("moments", torch.tensor(weyl_moments(d), dtype=torch.float64), haar_moments(d))


def test_the_largest_spacing_of_known_phases():
    def rotation(*angles):
        blocks = [
            torch.tensor([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]]) for a in angles
        ]
        return torch.block_diag(*blocks).to(torch.float64)

    assert_close("identity", 4.0, largest_spacing(torch.eye(4, dtype=torch.float64)), factor=1e5)
    even = rotation(math.pi / 4, 3 * math.pi / 4)
    # The angles are rounded to float32.
    assert_close("even", 1.0, largest_spacing(even), torch.float32)
    gap = (2 * math.pi - 2.0) / (2 * math.pi / 4)
    assert_close("gap", gap, largest_spacing(rotation(0.5, 1.0)), torch.float32)


@pytest.mark.bad_input
def test_bad_input_is_refused_with_a_reason(generator):
    with pytest.raises(ShapeError, match=r"`X` must be a batch \(n, d, d\)"):
        random_rotations(torch.eye(4), 2, generator=generator)
    with pytest.raises(ShapeError, match="rotations need at least d=2"):
        haar_moments(1)
    with pytest.raises(ValueError, match="`num_samples` must be a whole number"):
        haar_mixing(4, 2, num_steps=1, num_samples=0, generator=generator)


def test_autocast_changes_no_bit_of_a_random_rotation(generator):
    X = random_stiefel(6, generator=generator, dtype=torch.float32, batch=(2,))
    expected = random_rotations(X, 3, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        result = random_rotations(X, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(result, expected)
