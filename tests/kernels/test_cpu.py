"""The fused steps of the CPU against their references: same draws, values to rounding, in place."""

from dataclasses import replace
from itertools import combinations, product

import numba
import numpy as np
import pytest
import torch

from helpers import assert_close, randn, random_stiefel
from skewflow.geometry import orthogonality_error
from skewflow.kernels._runtime import numba_loops
from skewflow.kernels._runtime.update_cpu import as_word
from skewflow.kernels.permutation.cpu import fill_matching, fill_order
from skewflow.kernels.permutation.reference import matching_at, order_at
from skewflow.kernels.rotate_blocks.cpu import step_blocks_
from skewflow.kernels.rotate_blocks.reference import step_blocks
from skewflow.kernels.rotate_pairs.cpu import step_pairs_
from skewflow.kernels.rotate_pairs.reference import step_pairs
from skewflow.kernels.update import Update

SHAPES = [(2, 2), (2, 1), (3, 2), (5, 5), (16, 16), (63, 17), (64, 63), (100, 100), (1000, 3)]
BLOCKS = [
    (5, 3, 2),
    (16, 16, 4),
    (63, 17, 5),
    (64, 63, 3),
    (100, 100, 8),
    (300, 5, 64),
    (64, 9, 16),
]
LARGE_BLOCKS = [(2, 2, 2), (5, 5, 4), (16, 16, 16), (100, 7, 30), (300, 5, 70)]
CASES = [(*shape, None) for shape in SHAPES] + BLOCKS + LARGE_BLOCKS
"""Rows, columns and block size; pairs without one."""

LAYOUTS = ["rows", "columns", "strided"]
DTYPES = [torch.float64, torch.float32]
PLAIN = Update(lr=0.1, seed=3, stream=7)
UPDATES = {
    "plain": PLAIN,
    "maximize": replace(PLAIN, maximize=True),
    "momentum": replace(PLAIN, momentum=0.9, seed=2**40 + 1),
    "nesterov": replace(PLAIN, momentum=0.9, nesterov=True, retraction="cayley"),
    "cayley": replace(PLAIN, retraction="cayley"),
    "maximize-momentum": replace(PLAIN, momentum=0.5, maximize=True, nesterov=True),
}


@pytest.fixture(autouse=True)
def one_torch_thread():
    """On busy cores the barriers of torch's threads make a hundred small products take seconds."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def laid_out(A, layout):
    """`A` with the same entries and other strides."""
    if layout == "rows":
        return A.contiguous()
    if layout == "columns":
        return A.mT.contiguous().mT
    n, d, k = A.shape
    wide = torch.full((n, 2 * d, 3 * k + 1), torch.nan, dtype=A.dtype)
    view = wide[:, ::2, 1::3]
    view.copy_(A)
    return view


def problem(n, d, k, dtype, generator, layout="rows", momentum=False):
    X = random_stiefel(d, k, batch=(n,), generator=generator, dtype=dtype)
    G = randn(n, d, k, generator=generator, dtype=dtype)
    M = randn(n, d, k, generator=generator, dtype=dtype) if momentum else None
    return tuple(None if A is None else laid_out(A, layout) for A in (X, G, M))


def step_(X, G, M, step, update, s):
    if s is None:
        step_pairs_(X, G, M, step, update)
    else:
        step_blocks_(X, G, M, step, update, s)


def reference(X, G, M, step, update, s):
    if s is None:
        return step_pairs(X, G, M, step, update)
    return step_blocks(X, G, M, step, update, s)


def check(n, d, k, s, dtype, layout, name, generator):
    """Three steps of the fused and of the reference code from the same point."""
    update = UPDATES[name]
    # Angles near one: an entry of the estimate is about d / s times a product of two rows.
    update = replace(update, lr=(s or 2) / (2 * d))
    X, G, M = problem(n, d, k, dtype, generator, layout, momentum=update.momentum > 0)
    G_before, expected, expected_M = G.clone(), X.clone(), None if M is None else M.clone()
    for time in (0, 1, d + 1):
        step = torch.tensor(time)
        expected, expected_M = reference(expected, G, expected_M, step, update, s)
        step_(X, G, M, step, update, s)
    # Both round the sums that become angles; over three steps and d entries that adds up.
    assert_close("X", expected, X, dtype, factor=10)
    if M is not None:
        assert_close("M", expected_M, M, dtype, factor=10)
    assert torch.equal(G, G_before)
    assert int(step) == d + 1


@pytest.mark.parametrize("d", [2, 3, 5, 64, 100, 4097])
def test_draws_are_bit_for_bit_those_of_the_reference(d):
    half = (d + 1) // 2
    for seed, stream, time in [(0, 0, 0), (5, 3, 1), (2**40 + 7, 9, d), (-3, 2, 2**33 + 5)]:
        words, step = [as_word(v) for v in (seed, stream, time)], torch.tensor(time)
        pairs, order = np.empty((2, half), np.uint32), np.empty(d, np.uint32)
        for start, stop in [(0, half // 3), (half // 3, half)]:
            some = np.empty((2, stop - start), np.uint32)
            fill_matching(some, start, d, *words)
            pairs[:, start:stop] = some
        fill_order(order, 0, d, *words)
        expected, alone = matching_at(d, seed, stream, step)
        assert pairs[:, : d // 2].T.tolist() == expected.tolist()
        assert pairs[:, d // 2 :].tolist() == [alone.tolist()] * 2
        assert order.tolist() == order_at(d, seed, stream, step).tolist()


def cover(place):
    """Options, dtypes, layouts and numbers of matrices for the case at this place."""
    for j, name in enumerate(UPDATES):
        yield name, DTYPES[(place + j // 3) % 2], LAYOUTS[(place + j) % 3], 1 + (place + j // 2) % 3


def test_the_cover_has_every_pair_of_values():
    rows = [(place, *row) for place in range(len(CASES)) for row in cover(place)]
    for a, b in combinations(range(5), 2):
        values = [{row[c] for row in rows} for c in (a, b)]
        assert {(row[a], row[b]) for row in rows} == set(product(*values))


@pytest.mark.parametrize("place", range(len(CASES)), ids=[str(case) for case in CASES])
def test_pairs_and_blocks_match_the_reference(place, generator):
    for name, dtype, layout, n in cover(place):
        check(n, *CASES[place], dtype, layout, name, generator)


@pytest.mark.parametrize("s", [None, 5])
def test_a_gradient_of_another_layout_is_read_as_it_is(s, generator):
    for layouts in [("rows", "columns", "strided"), ("columns", "strided", "rows")]:
        X, G, M = problem(2, 24, 20, torch.float64, generator, momentum=True)
        expected = reference(X, G, M, torch.tensor(4), UPDATES["nesterov"], s)
        X, G, M = (laid_out(A, layout) for A, layout in zip((X, G, M), layouts, strict=True))
        step_(X, G, M, torch.tensor(4), UPDATES["nesterov"], s)
        assert_close("X", expected[0], X)
        assert_close("M", expected[1], M)
    X = laid_out(random_stiefel(24, 20, batch=(2,), generator=generator), "rows")
    G = torch.ones(()).expand(2, 24, 20)
    expected = reference(X, G.double(), None, torch.tensor(4), PLAIN, s)[0]
    step_(X, G, None, torch.tensor(4), PLAIN, s)
    assert_close("X", expected, X)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "dtype, s", [(torch.float32, None), (torch.float32, 8), (torch.float64, 70)], ids=str
)
def test_bits_do_not_depend_on_the_number_of_threads(dtype, s, layout, generator, monkeypatch):
    monkeypatch.setattr(numba_loops, "GRAIN", 1)  # else matrices of this size take one thread
    update = UPDATES["momentum"]
    X, G, M = problem(2, 300, 290, dtype, generator, layout, momentum=True)
    copies, most = [], numba.config.NUMBA_NUM_THREADS
    for num_threads in sorted({1, min(2, most), most}):
        torch.set_num_threads(num_threads)
        Xc, Mc = laid_out(X.clone(), layout), laid_out(M.clone(), layout)
        for time in range(3):
            step_(Xc, G, Mc, torch.tensor(time), update, s)
        copies.append((Xc, Mc))
    for Xc, Mc in copies:
        assert torch.equal(Xc, copies[0][0]) and torch.equal(Mc, copies[0][1])
    assert not torch.equal(copies[0][0], X)


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("s", [None, 5, 40])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_angles_stay_orthogonal(dtype, s, layout, generator):
    X, G, _ = problem(1, 64, 64, dtype, generator, layout)
    for time in range(20):
        step_(X, G, None, torch.tensor(time), replace(PLAIN, lr=10.0), s)
    eps = torch.finfo(dtype).eps
    assert orthogonality_error(X.double()).item() < 20 * 64**0.5 * eps


@pytest.mark.parametrize("s", [None, 5])
def test_large_angles_match_the_reference(s, generator):
    X, G, _ = problem(1, 33, 20, torch.float64, generator)
    update = replace(PLAIN, lr=3.0)  # angles of some hundreds
    expected, _ = reference(X, G, None, torch.tensor(5), update, s)
    step_(X, G, None, torch.tensor(5), update, s)
    assert_close("X", expected, X, factor=100)  # an angle of 500 has 500 times the rounding


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("s", [None, 4, 20])
@pytest.mark.parametrize("retraction", ["exp", "cayley"])
def test_without_gradient_nothing_moves(retraction, s, layout, generator):
    X, G, M = problem(2, 31, 20, torch.float64, generator, layout, momentum=True)
    before = X.clone()
    G.zero_()
    M.zero_()
    update = replace(UPDATES["momentum"], retraction=retraction)
    step_(X, G, M, torch.tensor(0), update, s)
    assert_close("X", before, X)
    assert not M.any()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("d, s", [(5, None), (7, 2), (9, 2)])
def test_the_momentum_of_a_row_alone_moves_on_and_that_of_the_others_turns(d, s, layout, generator):
    X, G, M = problem(1, d, 3, torch.float64, generator, layout, momentum=True)
    before, expected = X.clone(), 0.9 * M + G
    step_(X, G, M, torch.tensor(1), replace(PLAIN, momentum=0.9), s)
    stayed = (before == X).all(dim=-1)[0]
    assert stayed.sum() == 1
    assert_close("M", expected[:, stayed], M[:, stayed])
    assert ((M - expected).abs().amax(dim=-1)[0] > 1e-3).sum() == d - 1
    # The same rotation: so the product of point and momentum is that of before.
    assert_close("X^T M", before.mT @ expected, X.mT @ M)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("s", [None, 5])
def test_memory_between_the_entries_is_left_alone(s, layout, generator):
    whole = randn(2, 70, 50, generator=generator)
    before = whole.clone()
    view = whole[:, 3:40, 5:25]
    if layout == "columns":
        view = whole.mT[:, 3:40, 5:25]
    elif layout == "strided":
        view = whole[:, 3:40:2, 5:25:2]
    G = randn(*view.shape, generator=generator)
    step_(view, G, None, torch.tensor(0), replace(PLAIN, lr=1e-3), s)
    assert not torch.equal(whole, before)
    view.zero_()
    changed = (whole != before).sum().item()
    assert changed == view.numel()


def test_float32_angles_are_sums_to_rounding(generator):
    X, G = (randn(1, 2, 5000, generator=generator, dtype=torch.float32) for _ in range(2))
    products = G[0, 0].double() * X[0, 1].double(), X[0, 0].double() * G[0, 1].double()
    omega = (products[0] - products[1]).sum()
    bound = sum(p.abs().sum() for p in products)
    for layout in ("rows", "columns"):
        Y = laid_out(X, layout).clone()
        step_pairs_(
            Y, laid_out(G, layout), None, torch.tensor(0), replace(PLAIN, lr=1 / bound.item())
        )
        i, j = matching_at(2, PLAIN.seed, PLAIN.stream, torch.tensor(0))[0][0].tolist()
        turned = torch.atan2(
            (Y[0, i] * X[0, j] - Y[0, j] * X[0, i]).double().sum(),
            (Y[0, i] * X[0, i] + Y[0, j] * X[0, j]).double().sum(),
        )
        expected = -omega / bound * (1 if i == 0 else -1)
        assert abs(turned - expected) < 1e-6


def test_autograd_notices_the_change(generator):
    X, G, _ = problem(1, 6, 4, torch.float64, generator)
    X.requires_grad_()
    loss = (X * X).sum()
    with torch.no_grad():
        step_pairs_(X, G, None, torch.tensor(0), PLAIN)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("s", [2, 4, 30])
def test_planes_are_divided_by_the_moments_of_their_rows(s, layout, generator):
    X, G = (
        random_stiefel(35, 6, generator=generator, batch=(2,)),
        randn(2, 35, 6, generator=generator),
    )
    if layout == "columns":
        X, G = X.mT.contiguous().mT, G.mT.contiguous().mT
    w = randn(2, 35, generator=generator).exp()
    update, step = Update(lr=0.01, seed=3), torch.tensor(5)
    if s == 2:
        expected, _ = step_pairs(X, G, None, step, update, w)
        step_pairs_(X, G, None, step, update, w)
    else:
        expected, _ = step_blocks(X, G, None, step, update, s, w)
        step_blocks_(X, G, None, step, update, s, w)
    assert_close("X", expected, X)
