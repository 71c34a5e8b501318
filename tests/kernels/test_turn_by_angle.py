"""Steps whose learning rate is an angle: the reference by its definition, the loops by it."""

from dataclasses import replace

import pytest
import torch

from helpers import assert_close, randn, random_skew, random_stiefel, scipy_expm
from skewflow.kernels.block_step import stepper
from skewflow.kernels.permutation.reference import matching_at, order_at
from skewflow.kernels.turn_by_angle.exact import direction_by_angle, factors_by_angle
from skewflow.kernels.turn_by_angle.reference import blocks_by_angle, planes_of, step_by_angle
from skewflow.kernels.turn_by_angle.sign import sign
from skewflow.kernels.update import Update
from skewflow.tournaments import block_sizes

PLAIN = Update(lr=0.3, seed=3, stream=7, angle="rms")
MOMENTUM = replace(PLAIN, momentum=0.9, seed=2**40 + 1)
UPDATES = {
    "plain": PLAIN,
    "maximize": replace(PLAIN, maximize=True, retraction="cayley"),
    "momentum": MOMENTUM,
    "nesterov": replace(MOMENTUM, nesterov=True, independent=True),
}
SHAPES = [(2, 2, 2), (5, 5, 2), (9, 1, 2), (64, 20, 2), (16, 16, 4), (37, 3, 8), (64, 40, 16)]
SHAPES += [(8, 8, 3), (20, 1, 5)]  # blocks of one plane
LARGE = [(5, 5, 4), (100, 7, 30), (150, 5, 70)]


def generator_of(X, D):
    return D @ X.mT - X @ D.mT


def true_sign(A):
    """By eigenvalues: those of i A are real."""
    values, V = torch.linalg.eigh(1j * A.to(torch.complex128))
    kept = values.abs() > 1e-9 * values.abs().amax(-1, keepdim=True)
    return ((V * (values.sign() * kept)[..., None, :]) @ V.mH * -1j).real


def relative(A, B):
    return float(torch.linalg.norm(A - B) / torch.linalg.norm(B))


@pytest.mark.parametrize("s", [2, 3, 4, 9, 32])
def test_the_sign_turns_every_plane_by_a_radian(s, generator):
    A = random_skew(s, generator=generator, batch=(3,))
    B = sign(A, s // 2)
    assert_close("skew", -B.mT, B)
    assert relative(B, true_sign(A)) < (1e-12 if s < 4 else 0.1)
    huge, none = sign(torch.stack([1e150 * A[0], 0 * A[0]]), s // 2)
    assert_close("scaled", B[0], huge)
    assert not none.any()


@pytest.mark.parametrize("k", [1, 2, 50])
def test_the_root_mean_square_is_over_the_planes_that_can_turn(k, generator):
    """A block of s rows turns min(s / 2, k) planes; one number serves all blocks."""
    blocks = random_skew(5, generator=generator, batch=(2,)), random_skew(4, generator=generator)
    blocks = blocks[0], blocks[1][None]
    B = blocks_by_angle(blocks, k, "rms")
    squares = sum(float(block.square().sum()) for block in B)
    assert squares == pytest.approx(2 * 3 * min(2, k))
    ratio = blocks[0] / B[0]
    assert_close("ratio", ratio[0, 0, 1].expand(4), (blocks[1] / B[1])[0, 0, 1:].repeat(2)[:4])
    assert not any(b.any() for b in blocks_by_angle(tuple(0 * b for b in blocks), k, "rms"))


@pytest.mark.parametrize("angle", ["rms", "spectral"])
@pytest.mark.parametrize("shape", [*SHAPES[:5], (8, 8, 3)], ids=str)
def test_a_step_of_the_reference_by_hand(shape, angle, generator):
    """The dense generator of the drawn planes, at one radian, through scipy's exponential."""
    d, k, s = shape
    update = replace(MOMENTUM, angle=angle)
    X = random_stiefel(d, k, generator=generator, batch=(2,))
    G, M = (randn(2, d, k, generator=generator) for _ in range(2))
    X_new, M_new = step_by_angle(X, G, M, torch.tensor(5), update, s)
    for b in range(2):
        D = G[b] + 0.9 * M[b]
        omega, drawn = generator_of(X[b], D), torch.zeros(d, d, dtype=X.dtype)
        stream, planes, start, blocks = update.stream + b, 0, 0, []
        if s == 2:
            order = matching_at(d, update.seed, stream, torch.tensor(5))[0].flatten()
        else:
            order = order_at(d, update.seed, stream, torch.tensor(5))
        for size, count in block_sizes(d, s):
            for _ in range(count if size > 1 else 0):
                rows = order[start : start + size]
                block = omega[rows][:, rows]
                several = angle == "spectral" and s > 3
                drawn[rows[:, None], rows] = sign(block, size // 2) if several else block
                planes, start = planes + min(size // 2, k), start + size
                blocks.append((rows[:, None], rows))
        if not several:
            drawn *= (2 * planes) ** 0.5 / torch.linalg.norm(drawn)
        if angle == "spectral" and not several:
            for rows in blocks:  # a plane of one radian stays, others approach it
                x = float(torch.linalg.matrix_norm(drawn[rows], ord=2))
                drawn[rows] *= (5 / (x**2 + 4)) ** 0.5
        R = scipy_expm(-0.3 * drawn)
        assert_close("X", R @ X[b], X_new[b], factor=10)
        assert_close("M", R @ D, M_new[b], factor=10)


def test_planes_of_their_own_turn_by_a_soft_sign_of_their_size():
    A = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    sizes = torch.tensor([0.0, 1e-3, 3.0, 3.0, 3.0, 100.0])
    (B,) = blocks_by_angle((sizes[:, None, None] * A,), 9, "spectral")
    turned = B[:, 1, 0]
    assert list(turned) == sorted(turned) and turned[0] == 0
    assert float(turned[1]) < 1e-3 and 1.7 < float(turned[-1]) < 5**0.5
    (C,) = blocks_by_angle((7e20 * A.expand(4, 2, 2),), 9, "spectral")
    assert_close("equal sizes", A.expand(4, 2, 2), C, torch.float32)


@pytest.mark.parametrize("angle", ["rms", "spectral"])
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("columns", [False, True])
def test_the_loops_equal_the_reference(columns, update, angle, generator):
    for d, k, s in SHAPES + LARGE:
        check_loops(d, k, s, replace(UPDATES[update], angle=angle), columns, generator)


def check_loops(d, k, s, update, columns, generator):
    X = random_stiefel(d, k, generator=generator, batch=(2,))
    tensors = [X, randn(2, d, k, generator=generator)]
    tensors += [randn(2, d, k, generator=generator)] if update.momentum else []
    X, G, *rest = (A.mT.contiguous().mT if columns else A for A in tensors)
    M = rest[0] if rest else None
    X_new, M_new = step_by_angle(X, G, M, torch.tensor(4), update, s)
    stepper(X.device, s, update)(X, G, M, 4, update)
    assert_close(f"X, {d} x {k}, s={s}", X_new, X, factor=10)
    if M is not None:
        assert_close(f"M, {d} x {k}, s={s}", M_new, M, factor=10)


@pytest.mark.parametrize("angle", ["rms", "spectral"])
@pytest.mark.parametrize("s", [2, 4, 8])
def test_a_gradient_of_zero_moves_nothing(s, angle):
    X = torch.eye(8).repeat(1, 1, 1)
    update = replace(PLAIN, angle=angle)
    stepper(X.device, s, update)(X, torch.zeros(1, 8, 8), None, 0, update)
    assert torch.equal(X[0], torch.eye(8))


@pytest.mark.parametrize("shape", [(6, 6), (9, 9), (12, 5), (40, 12), (30, 1)], ids=str)
def test_directions_of_exact_steps_have_the_generator_at_one_radian(shape, generator):
    d, k = shape
    X = random_stiefel(d, k, generator=generator, batch=(2,))
    D = 1e30 * randn(2, d, k, generator=generator)
    omega = generator_of(X, D)
    E = generator_of(X, direction_by_angle(X, D, "rms"))
    length = (2 * planes_of(d, k)) ** 0.5
    assert_close("rms", omega * length / torch.linalg.norm(omega, dim=(1, 2), keepdim=True), E)
    Z = generator_of(X, direction_by_angle(X, D, "spectral")) @ X
    assert relative(Z, true_sign(omega) @ X) < 0.05
    for angle in ("rms", "spectral"):
        assert not direction_by_angle(X, 0 * D, angle).any()


@pytest.mark.parametrize("angle", ["rms", "spectral"])
@pytest.mark.parametrize("shape", [(9, 9, 2), (12, 5, 1), (40, 12, 5)], ids=str)
def test_factors_give_the_step_of_their_product(shape, angle, generator):
    d, k, r = shape
    X = random_stiefel(d, k, generator=generator, batch=(2,))
    A, B = randn(2, d, r, generator=generator), randn(2, k, r, generator=generator)
    whole = generator_of(X, direction_by_angle(X, A @ B.mT, angle)) @ X
    P, Q = factors_by_angle(X, A, B, angle)
    assert relative(generator_of(X, P @ Q.mT) @ X, whole) < (1e-12 if angle == "rms" else 0.05)
    P, Q = factors_by_angle(X, 0 * A, B, angle)
    assert not (P @ Q.mT).any()
