"""Several matchings for each gradient: `num_draws` of FlowSGD."""

import numpy as np
import pytest
import scipy.linalg
import torch

from helpers import assert_close, randn
from skewflow.errors import BlockSizeError
from skewflow.flows import Field, integrate
from skewflow.geometry import haar, omega, orthogonality_error
from skewflow.kernels.permutation.reference import matching_at
from skewflow.kernels.rotate_pairs.draws_cpu import step_draws_
from skewflow.kernels.rotate_pairs.reference import step_pairs
from skewflow.kernels.update import Update
from skewflow.optim import AngleSGD, FlowAdam, FlowSGD
from skewflow.samplers import HRegular

SHAPES = [(1, 2, 1), (2, 5, 3), (1, 16, 16), (3, 33, 17), (1, 40, 4)]
UPDATES = {
    "plain": Update(lr=0.02, num_draws=3, seed=2**60 + 1),
    "ascent": Update(lr=0.02, num_draws=5, maximize=True, retraction="cayley"),
    "independent": Update(lr=0.02, num_draws=4, independent=True, stream=3),
    "momentum": Update(lr=0.02, num_draws=7, momentum=0.9),
    "nesterov": Update(lr=0.02, num_draws=2, momentum=0.9, nesterov=True, maximize=True),
}


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_compiled_loop_equals_the_reference(update, layout, dtype, generator):
    for shape in SHAPES:
        check_loop(shape, UPDATES[update], layout, dtype, generator)


def check_loop(shape, update, layout, dtype, generator):
    n, d, k = shape
    X = haar(d, k, batch=(n,), generator=generator, dtype=dtype) if d > 1 else randn(*shape)
    tensors = [X, randn(*shape, generator=generator, dtype=dtype)]
    tensors += [randn(*shape, generator=generator, dtype=dtype)] if update.momentum else []
    if layout == "columns":
        tensors = [A.mT.contiguous().mT for A in tensors]
    X, G, *rest = tensors
    M = rest[0] if rest else None
    kept = G.clone()
    X_new, M_new = step_pairs(X, G, M, torch.tensor(11), update)
    step_draws_(X, G, M, 11, update)
    assert_close(f"X, {shape}", X_new, X, dtype, factor=10)
    if M is not None:
        assert_close(f"M, {shape}", M_new, M, dtype, factor=10)
    assert torch.equal(G, kept)


@pytest.mark.parametrize("d", [6, 7])
def test_a_step_is_a_product_of_exponentials_at_one_point(d, generator):
    """By scipy, from the matchings that the seed names."""
    m, lr = 4, 0.3
    p = torch.nn.Parameter(haar(d, 3, generator=generator, dtype=torch.float64))
    X, G = p.detach().clone(), randn(d, 3, generator=generator)
    optimizer = FlowSGD([p], lr, block_size=2, num_draws=m, seed=5)
    scale = d - 1 if d % 2 == 0 else d
    Omega = omega(X, G).numpy()
    expected = X.numpy()
    for draw in range(2 * m):
        mask = np.zeros((d, d))
        pairs, _ = matching_at(d, 5, 0, torch.tensor(draw))
        for i, j in pairs.tolist():
            mask[i, j] = mask[j, i] = 1
        if draw == m:
            Omega = omega(torch.from_numpy(expected), G).numpy()
        expected = scipy.linalg.expm(-lr / m * scale * mask * Omega) @ expected
    for _ in range(2):
        p.grad = G
        optimizer.step()
    assert_close("X", torch.from_numpy(expected), p.detach(), torch.float64)


def test_a_sweep_of_draws_is_the_exact_step_to_second_order(generator):
    d = 12
    start, G = haar(d, generator=generator, dtype=torch.float64), randn(d, d, generator=generator)
    errors = []
    for lr in (1e-3, 1e-4):
        ends = []
        for options in ({"block_size": 2, "num_draws": d - 1}, {"block_size": "dense"}):
            p = torch.nn.Parameter(start.clone())
            p.grad = G.clone()
            FlowSGD([p], lr, **options).step()
            ends.append(p.detach())
        errors.append(float((ends[0] - ends[1]).norm()))
    assert errors[1] == pytest.approx(errors[0] / 100, rel=0.1)


def test_draws_of_a_sampler_are_those_of_the_integrator(generator):
    A = randn(10, 10, generator=generator)
    start = haar(10, generator=generator, dtype=torch.float64)
    p = torch.nn.Parameter(start.clone())
    optimizer = FlowSGD([p], 0.1, sampler=HRegular(2), block_size=2, num_draws=6)
    drawn = optimizer.state[p]["generator"].clone_state()
    p.grad = A.clone()
    optimizer.step()
    field = Field(lambda t, X: omega(X, -A), side="left")
    path = integrate(field, start, 0.1, 1, sampler=HRegular(2), num_draws=6, generator=drawn)
    assert_close("X", path.last, p.detach(), torch.float64, factor=10)


def test_more_draws_have_less_noise(generator):
    """Without replacement the variance falls by (1 - (m - 1) / (d - 2)) / m, to zero at d - 1."""
    d, lr = 8, 1e-4
    start, G = haar(d, generator=generator, dtype=torch.float64), randn(d, d, generator=generator)
    found = []
    for m in (1, 3, d - 1):
        moved = []
        for seed in range(60):
            p = torch.nn.Parameter(start.clone())
            p.grad = G.clone()
            FlowSGD([p], lr, block_size=2, num_draws=m, seed=seed).step()
            moved.append((p.detach() - start) / lr)
        moved = torch.stack(moved)
        found.append(float((moved - moved.mean(0)).square().sum((1, 2)).mean()))
    assert found[1] / found[0] == pytest.approx((1 - 2 / (d - 2)) / 3, rel=0.2)
    assert found[2] < 1e-4 * found[0]


@pytest.mark.parametrize("sampler", ["sweep", "uniform", HRegular(2)], ids=str)
def test_a_resumed_run_has_the_same_bits(sampler, generator):
    def trained(steps, state=None, weight=None):
        p = torch.nn.Parameter(haar(9, 4, generator=torch.Generator().manual_seed(1)))
        optimizer = FlowSGD([p], 0.01, 0.9, block_size=2, sampler=sampler, num_draws=5)
        if state is not None:
            optimizer.load_state_dict(state)
            p.data.copy_(weight)
        for step in steps:
            p.grad = torch.randn(9, 4, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        return p.detach().clone(), optimizer.state_dict()

    whole, _ = trained(range(6))
    weight, state = trained(range(3))
    assert torch.equal(trained(range(3, 6), state, weight)[0], whole)


def test_many_draws_stay_orthogonal_at_any_rate(generator):
    for lr in (1e-3, 1.0, 1e6):
        p = torch.nn.Parameter(haar(20, 20, generator=generator))
        optimizer = FlowSGD([p], lr, 0.9, block_size=2, num_draws=19)
        for _ in range(20):
            p.grad = randn(20, 20, generator=generator, dtype=torch.float32)
            optimizer.step()
        assert orthogonality_error(p.detach()) / 20**0.5 < 1e-5


def test_a_state_of_before_has_one_draw(generator):
    p = torch.nn.Parameter(torch.eye(4))
    optimizer = FlowSGD([p], 0.1, block_size=2)
    state = optimizer.state_dict()
    del state["param_groups"][0]["num_draws"]
    state["param_groups"][0]["state_version"] = 4
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["num_draws"] == 1


@pytest.mark.bad_input
def test_draws_that_are_none_raise():
    p = torch.nn.Parameter(torch.eye(4))
    for block_size in ("auto", "dense", 3):
        with pytest.raises(BlockSizeError, match="Set block_size=2"):
            FlowSGD([p], 0.1, block_size=block_size, num_draws=2)
    with pytest.raises(BlockSizeError, match="blocks of 4"):
        FlowSGD([p], 0.1, sampler=HRegular(4), num_draws=2)
    with pytest.raises(ValueError, match="at least 1: got 0"):
        FlowSGD([p], 0.1, block_size=2, num_draws=0)
    for value in (1.5, "2", True):
        with pytest.raises((TypeError, ValueError), match="num_draws"):
            FlowSGD([p], 0.1, block_size=2, num_draws=value)
    for other in (AngleSGD, FlowAdam):
        with pytest.raises(TypeError):
            other([p], 0.1, num_draws=2)
        with pytest.raises(ValueError, match="not an option of this optimiser"):
            other([{"params": [p], "num_draws": 2}], 0.1, block_size=2)
