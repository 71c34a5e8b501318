"""Factored rotations: the reference against scipy, the CUDA kernels against the reference."""

import weakref

import pytest
import torch

from helpers import assert_close, randn, random_stiefel, scipy_expm
from skewflow.geometry import omega, orthogonality_error
from skewflow.kernels.polish.reference import polish_
from skewflow.kernels.rotate_factored import dispatch
from skewflow.kernels.rotate_factored.cpu import rotate_factored_
from skewflow.kernels.rotate_factored.dispatch import FactoredStep
from skewflow.kernels.rotate_factored.reference import (
    LONGEST,
    factored_generator,
    longest_for,
    num_rounds,
    rest_of,
    rotate_factored,
    split,
)

pytest.importorskip("triton")

from skewflow.kernels.rotate_factored._launches_triton import FactoredWorkspace

pytestmark = [
    pytest.mark.usefixtures("poisoned_memory"),
    # numpy, which the interpreter computes with, tells of what the kernels mean to do.
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered"),
]

SHAPES = [(1, 40, 40, 20), (2, 60, 20, 7), (1, 33, 33, 1), (2, 20, 7, 12), (1, 600, 9, 5)]
"""(n, d, k, r): square, thin, of rank one, of rank above k, and with sums that are split."""


def factors(n, d, k, r, generator, dtype=torch.float64):
    X = random_stiefel(d, k, batch=(n,), generator=generator, dtype=dtype)
    polish_(X)
    A, B = (randn(n, rows, r, generator=generator, dtype=dtype) for rows in (d, k))
    return X, A, B


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_reference_is_the_exponential_of_the_generator(shape, generator):
    X, A, B = factors(*shape, generator)
    ours = factored_generator(A, X @ B)
    for length in (0.0, 1e-6, 0.1, 1.0, LONGEST):
        eta = length / ours.norm
        generators = eta[:, None, None] * omega(X, A @ B.mT)
        expected = torch.stack([scipy_expm(W) @ X_b for W, X_b in zip(generators, X, strict=True)])
        for AX in (None, A.mT @ X):
            assert_close(f"Y, length {length}", expected, rotate_factored(X, ours, eta, AX))


def test_the_norm_of_the_generator_is_bounded(generator):
    X, A, B = factors(2, 60, 20, 7, generator)
    norm = torch.linalg.matrix_norm(omega(X, A @ B.mT), 2)
    bound = factored_generator(A, X @ B).norm
    assert (norm <= bound).all() and (bound <= 8 * norm).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_longer_steps_need_more_rounds(dtype):
    assert num_rounds(0.0, dtype) == 0
    for rounds in range(1, 8):
        assert num_rounds(longest_for(rounds, dtype), dtype) == rounds
        assert num_rounds(longest_for(rounds, dtype) * 1.001, dtype) == rounds + 1


KNOWN = ["B", "V", "V, AX"]
"""Which products of the factors and the point the caller has."""


@pytest.mark.parametrize(
    "shape, known",
    [*((SHAPES[0], known) for known in KNOWN), *zip(SHAPES[1:], [*KNOWN, *KNOWN], strict=False)],
    ids=str,
)
def test_the_kernels_take_the_step_of_the_reference(shape, known, generator, device):
    X, A, B = factors(*shape, generator, torch.float32)
    if shape[1] == shape[2]:
        X = X.mT.contiguous().mT  # as a wide weight is seen
    V, AX = X @ B, A.mT @ X
    ours = factored_generator(A, V)
    has = {"has_v": "V" in known, "has_ax": "AX" in known}
    workspace = FactoredWorkspace(X.to(device), shape[-1], **has)
    given = (V.to(device) if has["has_v"] else None, AX.to(device) if has["has_ax"] else None)
    for length in (0.0, 0.02, 3.9, 1e30) if shape == SHAPES[0] else (0.02, 1e30):
        lr = float(length / ours.norm.max())
        eta = (LONGEST / ours.norm).clamp(max=lr)
        Y = X.to(device, copy=True)
        row = int(length) % shape[1]
        assert workspace(Y, A.to(device), B.to(device), lr, *given, row, 1e-5).all()
        # Each rounds on its own; the terms of the series add up to 13 at the longest.
        factor = 1.0 if length < 1 else 3.0
        assert_close("Y", rotate_factored(X, ours, -eta), Y.cpu(), torch.float32, factor=factor)
        assert orthogonality_error(Y.cpu()).max() / shape[2] ** 0.5 < 1e-6


def near_stationary(n, d, k, r, rest, generator, dtype):
    """A gradient that is nearly normal: its generator is much shorter than its factors."""
    X, A, B = factors(n, d, k, r, generator, dtype)
    share = 1 + torch.arange(r, dtype=dtype) / r
    return X, X @ B * share + rest * A, B


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_a_column_has_of_the_other_is_taken_off(dtype, generator):
    X, A, B = near_stationary(2, 40, 20, 3, 0.01, generator, dtype)
    A[..., 2], V = 0, X @ B
    rest, eps = rest_of(V, A), torch.finfo(dtype).eps
    assert (torch.linalg.vecdot(rest, A, dim=-2).abs() < 100 * eps * 20).all()
    assert torch.equal(rest[..., 2], V[..., 2])
    assert torch.linalg.vector_norm(rest[..., :2]) < 0.1 * torch.linalg.vector_norm(V[..., :2])
    for a, v in ((1e-30, 1e30), (1e30, 1e-30), (1e-30, 1e-5)):
        assert_close("V", rest, rest_of(V * v, A * a) / v, dtype, factor=10)


@pytest.mark.parametrize("shape", [(2, 40, 20, 1), (1, 40, 40, 1), (2, 60, 30, 3)], ids=str)
def test_the_bound_of_the_generator_is_short_near_a_stationary_point(shape, generator):
    X, A, B = near_stationary(*shape, 1e-3, generator, torch.float64)
    norm = torch.linalg.matrix_norm(omega(X, A @ B.mT), 2)
    bound = factored_generator(A, X @ B).norm
    assert (norm <= bound).all() and (bound <= 4 * norm).all()
    assert (norm < 0.05 * torch.linalg.matrix_norm(A @ B.mT, 2)).all()


@pytest.mark.parametrize("place", range(9))
def test_steps_near_a_stationary_point_are_as_long_as_they_should_be(place, generator, device):
    shape = [(1, 40, 40, 1), (2, 60, 20, 3), (1, 600, 40, 1)][place // 3]
    rest, known = [1e-3, 1e-2, 0.3][place % 3], KNOWN[(place // 3 + place) % 3]  # a Latin square
    X, A, B = near_stationary(*shape, rest, generator, torch.float32)
    exact = omega(X.double(), A.double() @ B.double().mT)
    lr = 1.0 / float(torch.linalg.matrix_norm(exact, 2).max())
    V, AX = X @ B, A.mT @ X
    factors = lr * torch.linalg.matrix_norm(A, 2) * torch.linalg.matrix_norm(V, 2)
    assert factors.max() > LONGEST or rest == 0.3  # by them the step would be cut
    has = {"has_v": "V" in known, "has_ax": "AX" in known}
    given = (V if has["has_v"] else None, AX if has["has_ax"] else None)
    Y = X.to(device, copy=True)
    on_device = [F if F is None else F.to(device) for F in (A, B, *given)]
    workspace = FactoredWorkspace(Y, shape[-1], **has)
    assert workspace(Y, *on_device[:2], lr, *on_device[2:], 0, 1e-5).all()
    assert orthogonality_error(Y.cpu()).max() / shape[2] ** 0.5 < 1e-6
    ours = factored_generator(A, V)
    Z = rotate_factored(X, ours, torch.full_like(ours.norm, -lr))
    # The rounding of V is relative to all of it.
    allowed = 3e-7 * max(10.0, float(factors.max()))
    for b, x in enumerate(X):
        expected = scipy_expm(-lr * exact[b]) @ x.double()
        assert (expected - x).abs().max() > 0.03
        alone = x.clone()
        assert rotate_factored_(alone, A[b], B[b], -lr, *(F if F is None else F[b] for F in given))
        for y in (Y[b].cpu(), Z[b], alone):
            assert (y - expected).abs().max() < allowed


@pytest.mark.parametrize("known", KNOWN)
def test_a_normal_gradient_moves_nothing_however_long_it_is(known, generator, device):
    X, A, B = near_stationary(2, 40, 40, 5, 0.0, generator, torch.float32)
    A = X @ B
    has = {"has_v": "V" in known, "has_ax": "AX" in known}
    given = [(X @ B).to(device) if has["has_v"] else None]
    given.append((A.mT @ X).to(device) if has["has_ax"] else None)
    Y = X.to(device, copy=True)
    assert FactoredWorkspace(Y, 5, **has)(Y, A.to(device), B.to(device), 1.0, *given, 0, 1e-5).all()
    assert orthogonality_error(Y.cpu()).max() / 40**0.5 < 1e-6
    assert (Y.cpu() - X).abs().max() < 1e-4  # the norms of both factors are about 50 x 50


def test_the_parts_of_a_number_are_all_of_it_but_its_last_bits(generator):
    x = randn(5, 300, generator=generator, dtype=torch.float32)
    x *= torch.tensor([[1.0], [1e-9], [3e15], [0.0], [1e-30]])
    x[0, :100] *= 1e-5
    high, low, unit = split(x)
    error = (x.double() - unit[:, None].double() * (high.double() + low.double())).abs()
    # Entries below 2^-16 of the largest of their row are rounded as those are.
    assert (error <= 2.0**-23 * torch.maximum(x.abs(), 2.0**-16 * x.abs().amax(-1, True))).all()
    assert (torch.frexp(unit)[0] == 0.5).all()


@pytest.mark.parametrize("known", [False, True])
def test_factors_are_split_as_in_the_reference(known, generator, device):
    X, A, B = factors(2, 70, 40, 5, generator, torch.float32)
    A *= torch.tensor([1.0, 1e-12, 1e9, 0.0, 1e-35])
    V, AX = X @ B, A.mT @ X
    workspace = FactoredWorkspace(X.to(device), 5, has_v=known, has_ax=known)
    given = (V.to(device), AX.to(device)) if known else (None, None)
    workspace(X.to(device), A.to(device), B.to(device), 0.1, *given, 0, 1e-5)
    half = workspace.size // 2
    high, low, units = split(A.mT)
    L, L_units = workspace._L.cpu(), workspace._L_units.cpu()
    assert torch.equal(L[:, :, :5, :70], torch.stack([high, low], 1))
    some = A.any(-2)
    assert torch.equal(L_units[:, :5][some], units[some])
    assert not L[:, :, 5:half].any() and not L[:, :, half + 5 :].any()
    rest = L[:, :, half : half + 5, :70].float().sum(1) * L_units[:, half : half + 5, None]
    assert_close("V", rest_of(V, A), rest.mT, torch.float32)
    largest = L[:, 0, half : half + 5].abs().amax(-1)
    assert ((largest >= 2.0**14) & (largest <= 2.0**15)).all()


def test_factors_may_lie_anywhere(generator, device):
    X, A, B = (t.to(device) for t in factors(2, 40, 40, 8, generator, torch.float32))
    V, AX = X @ B, A.mT @ X
    workspace = FactoredWorkspace(X, 8, has_v=True, has_ax=True)
    Y, ends = X.clone(), []

    def moved(t):
        return torch.cat([t.reshape(-1)[:1], t.reshape(-1)])[1:].view(t.shape)

    layouts = [torch.clone, torch.clone, lambda t: t.mT.contiguous().mT, moved, torch.clone]
    for lay in layouts:
        Y.copy_(X)
        workspace(Y, lay(A), lay(B), 0.01, lay(V), lay(AX), 0, 1e-5)
        ends.append(Y.clone())
    assert not torch.equal(X, Y)
    assert torch.equal(ends[0], Y) and torch.equal(ends[1], Y)
    if device == "cpu":
        assert all(torch.equal(end, Y) for end in ends)
    for end in ends:  # a GPU adds up what lies along rows and across in different orders
        torch.testing.assert_close(end, Y, rtol=0, atol=1e-6)


def test_points_may_lie_anywhere(generator, device):
    """Of sides that are multiples of four not every way to lie has rows that begin at such."""
    X, A, B = (t.to(device) for t in factors(2, 40, 40, 8, generator, torch.float32))
    strides = [(1600, 40, 1), (1640, 41, 1), (1641, 40, 1), (1760, 44, 1)]
    strides += [(1600, 1, 40), (1641, 1, 41), (3200, 80, 2)]
    ends = []
    for stride in strides:
        Y = torch.full((7000,), torch.nan, device=device).as_strided(X.shape, stride).copy_(X)
        FactoredWorkspace(Y, 8, has_v=False, has_ax=False)(Y, A, B, 0.01, None, None, 0, 1e-5)
        ends.append(Y.contiguous())
    assert not torch.equal(X, ends[0])
    assert all(torch.equal(end, ends[0]) for end in ends)


def test_ranks_of_one_workspace_may_differ(generator, device):
    X, A, B = (t.to(device) for t in factors(1, 40, 40, 12, generator, torch.float32))
    workspace = FactoredWorkspace(X, 12, has_v=True, has_ax=True)
    for r in (12, 9, 1, 12):
        a, b = A[..., :r], B[..., :r]
        ours = factored_generator(a, X @ b)
        lr, Y = float(0.3 / ours.norm), X.clone()
        workspace(Y, a, b, lr, X @ b, a.mT @ X, 0, 1e-5)
        expected = rotate_factored(X, ours, torch.full_like(ours.norm, -lr))
        assert_close("Y", expected.cpu(), Y.cpu(), torch.float32)


def test_factors_of_zeros_move_nothing(generator, device):
    X, A, B = (t.to(device) for t in factors(1, 40, 40, 4, generator, torch.float32))
    A[:, :, 1], B[:, :, 2] = 0, 0
    workspace, Y = FactoredWorkspace(X, 4, has_v=False, has_ax=False), X.clone()
    assert workspace(Y, torch.zeros_like(A), B, 0.1, None, None, 0, 1e-5).all()
    assert torch.equal(X, Y)
    workspace(Y, A, B, 0.01, None, None, 0, 1e-5)
    ours = factored_generator(A, X @ B)
    expected = rotate_factored(X, ours, torch.full_like(ours.norm, -0.01))
    assert_close("Y", expected.cpu(), Y.cpu(), torch.float32)


@pytest.mark.parametrize("known", [False, True])
def test_factors_of_different_lengths_are_balanced(known, generator, device):
    X, A, B = factors(1, 40, 40, 4, generator, torch.float32)
    ours = factored_generator(A, X @ B)
    lr = float(0.5 / ours.norm)
    expected = rotate_factored(X, ours, torch.full_like(ours.norm, -lr))
    scale = torch.tensor([1e-15, 1e-12, 1e12, 1e15])  # squares have ratios of 1e60
    A, B, Y = (F.to(device) for F in (A * scale, B / scale, X.clone()))
    V, AX = (Y @ B, A.mT @ Y) if known else (None, None)
    assert FactoredWorkspace(Y, 4, has_v=known, has_ax=known)(Y, A, B, lr, V, AX, 0, 1e-5).all()
    assert_close("Y", expected, Y.cpu(), torch.float32)


@pytest.mark.parametrize("bad", [(torch.nan, torch.inf), (1e30, 1e30)], ids=str)
def test_factors_that_are_not_finite_leave_their_point_alone(bad, generator, device):
    X, A, B = (t.to(device) for t in factors(3, 40, 20, 4, generator, torch.float32))
    A[1, 0, 0], B[2, 0, 0] = bad
    workspace, Y = FactoredWorkspace(X, 4, has_v=False, has_ax=False), X.clone()
    flag = torch.zeros(1, dtype=torch.int32, device=device)
    assert workspace(Y, A, B, 0.1, None, None, 0, 1e-5, flag).tolist() == [True, False, False]
    assert flag.item() == 1
    flag.zero_()
    assert workspace(X[:1].repeat(3, 1, 1), A[:1].repeat(3, 1, 1), B[:1].repeat(3, 1, 1),
                     0.1, None, None, 0, 1e-5, flag).all()  # fmt: skip
    assert flag.item() == 0
    assert torch.equal(X[1:], Y[1:]) and not torch.equal(X[0], Y[0])


def test_products_with_another_point_leave_theirs_alone(generator, device):
    X, A, B = (t.to(device) for t in factors(2, 40, 20, 4, generator, torch.float32))
    V = X @ B
    V[1] = (X[1] + 1e-3 * randn(40, 20, generator=generator, dtype=torch.float32).to(device)) @ B[1]
    workspace, Y = FactoredWorkspace(X, 4, has_v=True, has_ax=False), X.clone()
    assert workspace(Y, A, B, 0.1, V, None, 7, 1e-5).tolist() == [True, False]
    assert torch.equal(X[1], Y[1]) and not torch.equal(X[0], Y[0])


def test_the_memory_of_a_captured_step_outlives_steps_of_other_ranks(
    generator, device, monkeypatch
):
    step, kept = FactoredStep(), []
    for rank, captured in ((4, False), (20, True), (4, False)):
        X, A, B = (t.to(device) for t in factors(1, 40, 40, rank, generator, torch.float32))
        monkeypatch.setattr(dispatch, "is_capturing", lambda value=captured: value)
        step._on_device(X, A, B, 0.1, None, None)
        kept.append(weakref.ref(next(iter(step._workspaces.values()))))
    assert [workspace() is not None for workspace in kept] == [False, True, True]
