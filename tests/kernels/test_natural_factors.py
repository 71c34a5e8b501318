"""Natural factors: the CUDA kernels against the reference in float64, and what they refuse."""

import pytest
import torch

from helpers import half, randn, random_stiefel
from skewflow.kernels.natural_factors import reference
from skewflow.kernels.natural_factors.reference import natural_factors

pytest.importorskip("triton")

from skewflow.kernels.natural_factors import _launches_triton as launches
from skewflow.kernels.natural_factors._inverse_root_triton import ROWS, inverse_root_of, padded
from skewflow.kernels.natural_factors._launches_triton import NaturalWorkspace

pytestmark = [
    pytest.mark.usefixtures("poisoned_memory"),
    # numpy, which the interpreter computes with, tells of what the kernels mean to do.
    pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero) encountered"),
]

SHAPES = [(1, 70, 70, 20), (2, 60, 33, 7), (1, 40, 40, 1), (2, 20, 7, 12), (2, 530, 520, 3)]
"""(n, d, k, r): square, thin, of rank one, of rank above k, and with sums that are split."""


def memory(n, k, device="cpu", dtype=torch.float64):
    kind = {"dtype": dtype, "device": device}
    H = torch.eye(k, **kind).repeat(n, 1, 1)
    return H, torch.zeros(2, n, 1, 1, **kind), torch.full((n, k, 1), k**-0.5, **kind)


def inverse_root(S, b, c, device):
    n, r, _ = S.shape
    usable = torch.ones(n)
    numbers = torch.stack([b, c, usable, usable], dim=-1).float().to(device)
    out = torch.zeros(n, r, r + 3, device=device)
    live = torch.zeros(n, dtype=torch.bool, device=device)
    panel = torch.empty(n, ROWS, padded(r), device=device)
    inverse_root_of(out, live, panel, S.float().to(device), numbers, r).once()
    assert not out[..., r:].any()
    return out[..., :r].double().cpu(), live


@pytest.mark.parametrize("r", [1, 5, 16, 33, 128])
def test_the_inverse_root_is_that_of_torch(r, generator, device):
    F = randn(2, r, 2 * r, generator=generator, dtype=torch.float64)
    S = F @ F.mT
    b, c = torch.tensor([0.1, 3.0]).double(), torch.tensor([1.0, 1.5]).double()
    found, live = inverse_root(S, b, c, device)
    N = c[:, None, None] * torch.eye(r, dtype=torch.float64) + b[:, None, None] ** 2 * S
    wanted = torch.linalg.inv(torch.linalg.cholesky(N))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(found, found.tril()) and live.all()


def test_what_has_no_root_is_not_live(device):
    S = torch.stack([-2 * torch.eye(5), torch.eye(5)]).double()
    one = torch.ones(2).double()
    assert inverse_root(S, one, one, device)[1].tolist() == [False, True]
    S[1, 4, 0] = torch.nan
    assert not inverse_root(S, one, one, device)[1].any()


@pytest.mark.parametrize(
    ("shape", "across"),
    [
        *((shape, n % 2 == 1) for n, shape in enumerate(SHAPES[:-1])),
        pytest.param(SHAPES[-1], False, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_kernels_are_the_reference(shape, across, generator, device, monkeypatch):
    ratio = torch.finfo(torch.float32).eps / torch.finfo(torch.float64).eps
    monkeypatch.setattr(reference, "ROUNDING", reference.ROUNDING * ratio)  # that of float32
    n, d, k, r = shape
    X = random_stiefel(d, k, batch=(n,), generator=generator, dtype=torch.float64)
    Y = X.float().to(device)
    if across:
        Y = Y.mT.contiguous().mT  # as a wide weight is seen
    ours, theirs = memory(n, k, device, torch.float32), memory(n, k)
    workspace = NaturalWorkspace(Y, r)
    for step in range(3):
        A, B = (randn(n, rows, r, generator=generator, dtype=torch.float64) for rows in (d, k))
        B *= 30.0 if step == 1 else 1.0  # which begins anew
        *wanted, finite = natural_factors(theirs, X, A, B)
        given = [F.float().to(device) for F in (A, B)]
        given = [F.mT.contiguous().mT if across else F for F in given]
        found = workspace(Y, *given, ours)
        assert finite and workspace._live.all()
        names = ("A", "B", "H", "numbers", "v")
        for name, F, G in zip(names, (*found, *ours), (*wanted, *theirs), strict=True):
            error = float((F.double().cpu() - G).norm() / G.norm())
            assert error < 2e-5, (name, step, error)
        H = ours[0]
        assert torch.equal(H, H.mT)


def test_coarse_products_are_those_with_the_points(generator, device, monkeypatch):
    X = random_stiefel(90, 40, batch=(1,), generator=generator, dtype=torch.float32).to(device)
    A, B = (randn(1, rows, 6, generator=generator).float().to(device) for rows in (90, 40))
    found = []
    for coarse in (False, True):
        monkeypatch.setattr(launches, "is_coarse", lambda X, coarse=coarse: coarse)
        state = memory(1, 40, device, torch.float32)
        A_new, B_new = NaturalWorkspace(X, 6)(X, A, B, state)
        found.append((A_new.clone(), B_new.clone(), *state))
    (A_fine, *exact), (A_coarse, *same) = found
    error = float((A_fine - A_coarse).norm() / A_fine.norm())
    assert 1e-6 < error < 1e-3
    assert all(torch.equal(F, G) for F, G in zip(exact[:2], same[:2], strict=True))


@pytest.mark.parametrize("place, value", [(0, torch.nan), (1, torch.inf), (0, 3e38), (1, 3e38)])
def test_what_is_not_usable_changes_nothing(place, value, generator, device):
    n, d, k, r = 2, 40, 20, 6
    X = random_stiefel(d, k, batch=(n,), generator=generator, dtype=torch.float32).to(device)
    state = memory(n, k, device, torch.float32)
    workspace = NaturalWorkspace(X, r)
    pairs = [[randn(n, m, r, generator=generator).float().to(device) for m in (d, k)] for _ in "ab"]
    workspace(X, *pairs[0], state)
    before = [F.clone() for F in state]
    pairs[1][place][1, 3, 2] = value
    A, _ = workspace(X, *pairs[1], state)
    assert A[1].isnan().all() and A[0].isfinite().all()
    for F, old in zip(state, before, strict=True):
        at = 1 if F.dim() == 4 else 0
        assert torch.equal(F.select(at, 1), old.select(at, 1))
        assert not torch.equal(F.select(at, 0), old.select(at, 0)) or F.dim() == 4


def test_ranks_of_one_size_share_a_workspace(generator, device):
    X = random_stiefel(40, 30, batch=(1,), generator=generator, dtype=torch.float32).to(device)
    shared, state = NaturalWorkspace(X, 5), memory(1, 30, device, torch.float32)
    other = tuple(F.clone() for F in state)
    for rank in (5, 16, 3):
        A, B = (randn(1, m, rank, generator=generator).float().to(device) for m in (40, 30))
        ours, theirs = shared(X, A, B, state), NaturalWorkspace(X, rank)(X, A, B, other)
        pairs = zip((*ours, *state), (*theirs, *other), strict=True)
        assert all(F.shape == G.shape and torch.equal(F, G) for F, G in pairs)


@pytest.mark.parametrize(
    "scales, first, columns",
    half([(1e-41, 1.0), (1.0, 1e-41), (1e-25, 1e-25), (1e17, 1e-41)], [True, False], [1, 6]),
)
def test_columns_that_all_but_vanish(scales, first, columns, generator, device):
    X = random_stiefel(40, 20, batch=(1,), generator=generator, dtype=torch.float32).to(device)
    state, other = memory(1, 20, device, torch.float32), memory(1, 20, "cpu", torch.float32)
    workspace = NaturalWorkspace(X, 6)
    for vanishing in (True,) if first else (False, True):
        A, B = (randn(1, m, 6, generator=generator).float() for m in (40, 20))
        if vanishing:
            A[..., :columns] *= scales[0]
            B[..., :columns] *= scales[1]
        found = workspace(X, A.to(device), B.to(device), state)
        *wanted, finite = natural_factors(other, X.cpu(), A, B)
        assert workspace._live.all() and finite
        for F, G in zip((*found, *state), (*wanted, *other), strict=True):
            assert F.isfinite().all()
            if columns == 1:  # else there is next to nothing to compare
                torch.testing.assert_close(F.cpu(), G, rtol=1e-3, atol=1e-5)
    assert (state[1] > 0).all() == (other[1] > 0).all()


def test_gradients_of_zeros_are_no_beginning(generator, device):
    X = random_stiefel(30, 20, batch=(1,), generator=generator, dtype=torch.float32).to(device)
    state = memory(1, 20, device, torch.float32)
    workspace = NaturalWorkspace(X, 4)
    A, B = workspace(X, *(torch.zeros(1, m, 4, device=device) for m in (30, 20)), state)
    assert not A.any() and not B.any() and not state[1].any() and workspace._live.all()


@pytest.mark.parametrize("rank", [1, 16])
def test_samples_that_come_again_leave_the_moment_positive(rank, generator, device):
    X = random_stiefel(64, 48, batch=(1,), generator=generator, dtype=torch.float32).to(device)
    state = memory(1, 48, device, torch.float32)
    workspace = NaturalWorkspace(X, 16)
    basis = randn(1, 48, rank, generator=generator).float()
    for step in range(5 if device == "cpu" else 1000):
        B = basis @ randn(1, rank, 16, generator=generator).float()
        A = randn(1, 64, 16, generator=generator).float() * (9.0 if step else 1.0)
        workspace(X, A.to(device), B.to(device), state)
        assert workspace._live.all()
    assert float(torch.linalg.eigvalsh(state[0].double())[0, 0]) > 0
