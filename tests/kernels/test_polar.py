"""The nearest point by CUDA kernels: that of the reference for steps of any length."""

import pytest
import torch

from helpers import assert_close, half, randn, random_stiefel, with_norm
from skewflow.geometry import omega, orthogonality_error
from skewflow.kernels.exact_polar import dispatch, polar_step, reference
from skewflow.kernels.polish.reference import polish_

pytest.importorskip("triton")

from skewflow.kernels.polish import _triton as by_parts

pytestmark = pytest.mark.usefixtures("poisoned_memory")

NORMS = [0.0, 1e-4, 0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 2.5]
"""Of a plane's turn: one term, four, then one round and two."""


def stepped(X, D, lr, device, parts=False):
    """By the kernels, which the interpreter runs on the CPU; also by products of parts."""
    X, D = X.to(device), D.to(device)
    if parts:
        return dispatch.polar_step_by_parts(X, D, lr, tangent=False)[0].cpu()
    R = D - X @ D.mT @ X
    return dispatch.retract(X, R, D, lr).cpu()


@pytest.mark.parametrize(
    "shape, wide, parts",
    half([(2, 1), (6, 6), (40, 33), (50, 7)], [False, True], [False, True]),
)
def test_the_nearest_point_is_the_projection_for_a_batch_of_any_norms(
    shape, wide, parts, generator, device
):
    X = random_stiefel(*shape, batch=(len(NORMS),), generator=generator)
    D = torch.stack([with_norm(randn(*shape, generator=generator), 1.0) for _ in NORMS])
    turn = torch.linalg.matrix_norm(omega(X, D), 2)
    D *= (torch.tensor(NORMS, dtype=torch.float64) / turn)[:, None, None]
    X32 = X.float().mT.contiguous().mT if wide else X.float()
    Y = stepped(X32, D.float(), 1.0, device, parts)
    for expected, Y_b in zip(reference.polar_step(X, D, 1.0), Y, strict=True):
        assert_close("Y", expected, Y_b, torch.float32)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("size", [1e-6, 1e-4, 1e-2])
def test_a_polish_by_parts_brings_points_back(size, wide, generator, device):
    X = random_stiefel(70, 40, batch=(2,), generator=generator, dtype=torch.float32)
    X += size * randn(2, 70, 40, generator=generator, dtype=torch.float32)
    Y, expected = X.to(device), X.double()
    Y = Y.mT.contiguous().mT if wide else Y.clone()
    by_parts.polish_(Y)
    polish_(expected)
    assert_close("Y", expected, Y.cpu(), torch.float32)


@pytest.mark.parametrize("shape, parts", [((9, 9), False), ((20, 4), True)], ids=str)
def test_any_learning_rate_gives_the_step_of_the_cpu(shape, parts, generator, device):
    X = random_stiefel(*shape, batch=(5,), generator=generator, dtype=torch.float32)
    D = randn(5, *shape, generator=generator, dtype=torch.float32)
    D *= torch.tensor([0.0, 1e-38, 1e-2, 1.0, 1e15])[:, None, None]
    for lr in (0.0, 1e-3, 1.0, 1e4, 1e30, 1e300):
        Y = stepped(X, D, lr, device, parts)
        assert orthogonality_error(Y).max() < 2e-6
        # Cut steps have the directions of their D, which is known to 6e-8.
        expected, _ = polar_step(X, D, lr)
        assert_close("Y", expected, Y, torch.float32, factor=10)


def test_steps_that_do_not_need_it_take_no_further_product(generator, device, monkeypatch):
    from skewflow.kernels.exact_polar import _triton as fused

    lives = []
    multiply = fused.multiply_where_
    monkeypatch.setattr(
        fused, "multiply_where_", lambda *a: (lives.append(a[3].tolist()), multiply(*a))
    )
    X = random_stiefel(12, 12, batch=(3,), generator=generator, dtype=torch.float32)
    D = randn(3, 12, 12, generator=generator, dtype=torch.float32)
    D *= torch.tensor([1e-5, 0.01, 1.0])[:, None, None]
    stepped(X, D, 1.0, device)
    square, *rounds, gram, again, series = lives
    assert square == series == [False, True, True]
    assert rounds[0] == gram == again == [False, False, True]
    assert rounds[1] == rounds[0] and len(rounds) == 4


@pytest.mark.parametrize(
    "shape, wide, lr", half([(1, 1), (33, 33), (70, 9)], [False, True], [1e-3, 1.0, 1e30])
)
def test_steps_and_tangent_parts_by_parts_are_those_of_the_cpu(shape, wide, lr, generator, device):
    X = random_stiefel(*shape, batch=(3,), generator=generator, dtype=torch.float32)
    D = randn(3, *shape, generator=generator, dtype=torch.float32)
    D *= torch.tensor([1e-3, 1.0, 30.0])[:, None, None]
    lay = (lambda A: A.to(device).mT.contiguous().mT) if wide else (lambda A: A.to(device))
    Y, T = dispatch.polar_step_by_parts(lay(X), lay(D), lr, tangent=True)
    expected, tangent = polar_step(X, D, lr, tangent=True)
    assert_close("T", tangent, T.cpu(), torch.float32)
    # Cut steps have the directions of their D, which is known to 6e-8.
    assert_close("Y", expected, Y.cpu(), torch.float32, factor=1.0 if lr < 1 else 10)
    assert (orthogonality_error(Y.cpu()) / shape[1] ** 0.5).max() < 1e-6


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_directions_that_are_not_finite_spoil_their_own_point_only(bad, generator, device):
    X = random_stiefel(10, 6, batch=(2,), generator=generator, dtype=torch.float32).to(device)
    D = randn(2, 10, 6, generator=generator, dtype=torch.float32).to(device)
    good, _ = dispatch.polar_step_by_parts(X[:1], D[:1], 0.1, tangent=False)
    D[1, 2, 3] = bad
    Y, _ = dispatch.polar_step_by_parts(X, D, 0.1, tangent=False)
    assert torch.equal(Y[0], good[0])
    assert Y[1].isnan().all()
