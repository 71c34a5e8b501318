"""Natural steps: the direction against its formula, the memory, what they are for, bad input."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import reasons_of
from skewflow.errors import FactorError, NonFiniteGradientError
from skewflow.kernels.natural_factors import reference
from skewflow.kernels.natural_factors.dispatch import _memory
from skewflow.kernels.natural_factors.reference import DAMPING, GROWTH
from skewflow.nn import OrthogonalLinear, orthogonal_
from skewflow.optim import AngleSGD, FlowAdam, FlowSGD, NaturalSGD, capture_factors

SHAPES = [(1, 9, 9, 2), (1, 9, 4, 3), (1, 6, 5, 8), (2, 7, 3, 1)]
"""Matrices, rows, columns and rank; of square, thin, fewer columns than rank, batched."""


def natural_factors(state: dict[str, Any], X: Tensor, A: Tensor, B: Tensor) -> Any:
    return reference.natural_factors(_memory(state, X), X, A, B)


def point(n: int, d: int, k: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(n, d, k, generator=g, dtype=torch.float64)).Q


def random_factors(n: int, d: int, k: int, r: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(100 + seed)
    return tuple(torch.randn(n, m, r, generator=g, dtype=torch.float64) for m in (d, k))  # type: ignore[return-value]


def is_as(before: dict[str, Any], after: dict[str, Any]) -> bool:
    tensors = {key: value for key, value in before.items() if isinstance(value, Tensor)}
    return all(torch.equal(value, after[key]) for key, value in tensors.items())


def tangent(X: Tensor, G: Tensor) -> Tensor:
    S = X.mT @ G
    return G - X @ (S + S.mT) / 2


def by_the_formula(X: Tensor, past: list[tuple[Tensor, Tensor]], v: Tensor) -> Tensor:
    """The direction of the last factors, with R formed, one matrix; v as it was before."""
    k = X.shape[-1]
    scaled = [(A / A.norm(dim=0), B * A.norm(dim=0)) for A, B in past]
    first = scaled[0][1]
    damping = DAMPING * first.square().sum() / k
    scale = damping + first.square().sum() / first.shape[1]
    R = damping * torch.eye(k, dtype=X.dtype) + sum(B @ B.mT for _, B in scaled)  # type: ignore[operator]
    A, B = scaled[-1]
    G, inverse = A @ B.mT, torch.linalg.inv(R)
    least = 1 / torch.maximum((inverse @ v).norm(), inverse.diagonal().max())
    assert least >= torch.linalg.eigvalsh(R)[0] * (1 - 1e-10)
    inner = inverse @ X.mT @ G @ inverse
    outside = (G - X @ X.mT @ G) @ inverse
    return scale * (outside + least * X @ (inner - inner.mT) / 2)


@pytest.mark.parametrize(("n", "d", "k", "r"), SHAPES)
def test_the_direction_is_that_of_the_formula(n: int, d: int, k: int, r: int) -> None:
    X, state, past = point(n, d, k), {}, []
    _memory(state, X)
    for seed in range(4):
        past.append(random_factors(n, d, k, r, seed))
        v = state["moment_direction"].clone()
        A, B, finite = natural_factors(state, X, *past[-1])
        assert bool(finite)
        for i in range(n):
            wanted = by_the_formula(X[i], [(A_[i], B_[i]) for A_, B_ in past], v[i])
            found = tangent(X[i], A[i] @ B[i].mT)
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)


def test_the_least_moment_is_found() -> None:
    X, state = point(1, 30, 20), {}
    for seed in range(30):
        natural_factors(state, X, *random_factors(1, 30, 20, 2, seed))
    values, vectors = torch.linalg.eigh(state["inverse_moment"][0])
    found = state["moment_direction"][0, :, 0]
    assert float((state["inverse_moment"][0] @ found).norm()) > 0.9 * float(values[-1])
    assert float(found @ vectors[:, -1]) ** 2 > 0.1


def test_a_plane_is_divided_by_the_larger_of_its_moments() -> None:
    """One of its rows is seen at every step, the other at none."""
    X, state, lengths = torch.eye(6, dtype=torch.float64)[None], {}, []
    for _ in range(50):
        A, B = X[..., 4:5].clone(), X[..., :1].clone()
        A2, B2, _ = natural_factors(state, X, A, B)
        lengths.append(float(tangent(X, A2 @ B2.mT).norm() / tangent(X, A @ B.mT).norm()))
    assert lengths[0] < 1.2 and lengths[-1] < 0.05
    assert all(later < sooner for sooner, later in itertools.pairwise(lengths))


def test_the_moment_stays_positive_in_float32_where_factors_are_far_from_isotropic() -> None:
    g = torch.Generator().manual_seed(0)
    X, state = point(1, 24, 16).float(), {}
    scales = torch.logspace(0, -3, 16)[:, None]
    for _ in range(3000):
        A, B = torch.randn(1, 24, 4, generator=g), scales * torch.randn(1, 16, 4, generator=g)
        A2, B2, finite = natural_factors(state, X, A, B)
        assert bool(finite)
    assert float(torch.linalg.eigvalsh(state["inverse_moment"].double())[0, 0]) > 0
    slope = (tangent(X, A @ B.mT) * tangent(X, A2 @ B2.mT)).sum()
    assert float(slope) > 0


def test_a_first_step_with_orthogonal_factors_is_that_of_the_gradient() -> None:
    X, (A, B) = point(1, 9, 5), random_factors(1, 9, 5, 3, 0)
    A, B = torch.nn.functional.normalize(A - X @ (X.mT @ A), dim=1), torch.linalg.qr(B).Q
    natural = natural_factors({}, X, 7 * A, B)
    torch.testing.assert_close(tangent(X, natural[0] @ natural[1].mT), 7 * A @ B.mT)


def test_how_a_pair_is_scaled_does_not_matter() -> None:
    X, (A, B) = point(1, 9, 5), random_factors(1, 9, 5, 3, 0)
    scales = torch.tensor([1e-6, 3.0, 1e9], dtype=torch.float64)
    plain, scaled = {}, {}
    for _ in range(3):
        one = natural_factors(plain, X, A, B)
        other = natural_factors(scaled, X, A * scales, B / scales)
        torch.testing.assert_close(one[0] @ one[1].mT, other[0] @ other[1].mT)


@pytest.mark.parametrize(("n", "d", "k", "r"), SHAPES)
def test_it_descends(n: int, d: int, k: int, r: int) -> None:
    X, state = point(n, d, k), {}
    for seed in range(20):
        A, B = random_factors(n, d, k, r, seed)
        A2, B2, _ = natural_factors(state, X, A, B)
        slope = (tangent(X, A @ B.mT) * tangent(X, A2 @ B2.mT)).sum((-2, -1))
        assert bool((slope > 0).all())


class Stream:
    """Samples of a subspace of k dimensions, and noise: online PCA, solved where it is found."""

    def __init__(self, d: int = 60, k: int = 40, batch: int = 4, seed: int = 0) -> None:
        g = torch.Generator().manual_seed(seed)
        self.span = torch.linalg.qr(torch.randn(d, k, generator=g, dtype=torch.float64)).Q
        self.start = torch.linalg.qr(torch.randn(d, k, generator=g, dtype=torch.float64)).Q
        self.g, self.batch = g, batch

    def factors(self, X: Tensor) -> tuple[Tensor, Tensor]:
        k = self.span.shape[1]
        Z = torch.randn(self.batch, k, generator=self.g, dtype=X.dtype) @ self.span.mT.to(X)
        return -Z.mT / self.batch, (Z @ X).mT

    def gap(self, X: Tensor) -> float:
        def missing(Y: Tensor) -> float:
            return float(Y.shape[1] - (self.span.mT @ Y.double()).square().sum())

        return missing(X) / missing(self.start)


def gap_after(steps: int, lr: float, *, natural: bool = False) -> float:
    stream = Stream()
    p = torch.nn.Parameter(stream.start.clone())
    optimizer = NaturalSGD([p], lr) if natural else FlowSGD([p], lr, block_size="dense")
    for _ in range(steps):
        optimizer.step(factors={p: stream.factors(p.detach())})
    return stream.gap(p.detach())


def test_a_stream_is_learnt_in_a_third_of_the_samples() -> None:
    rates = [0.005 * 2**i for i in range(9)]
    assert min(gap_after(24, lr, natural=True) for lr in rates) < 0.03
    assert min(gap_after(72, lr) for lr in rates) > 0.1


def test_it_goes_on_to_the_bit_where_it_was_saved() -> None:
    stream = Stream()
    p = torch.nn.Parameter(stream.start.float())
    optimizer = NaturalSGD([p], 0.02)
    given = [stream.factors(p.detach()) for _ in range(6)]
    for pair in given[:3]:
        optimizer.step(factors={p: pair})
    q = torch.nn.Parameter(p.detach().clone())
    other = NaturalSGD([q], 0.5)
    other.load_state_dict(optimizer.state_dict())
    for pair in given[3:]:
        optimizer.step(factors={p: pair})
        other.step(factors={q: pair})
    assert torch.equal(p, q)
    third = copy.deepcopy(other)
    (twin,) = third.param_groups[0]["params"]
    other.step(factors={q: given[0]})
    third.step(factors={twin: given[0]})
    assert torch.equal(q, twin)


def test_states_of_the_two_optimisers_are_told_apart() -> None:
    p = torch.nn.Parameter(orthogonal_(torch.empty(5, 3)))
    plain, natural = FlowSGD([p], 0.1), NaturalSGD([p], 0.1)
    with pytest.raises(ValueError, match="load it into `NaturalSGD`"):
        plain.load_state_dict(natural.state_dict())
    with pytest.raises(ValueError, match="has no `natural`"):
        natural.load_state_dict(plain.state_dict())


def test_a_moment_of_another_shape_is_refused() -> None:
    p, q = (torch.nn.Parameter(orthogonal_(torch.empty(6, k))) for k in (3, 4))
    one, other = (NaturalSGD([weight], 0.1) for weight in (p, q))
    one.step(factors={p: (torch.randn(6, 2), torch.randn(3, 2))})
    with pytest.raises(ValueError, match="inverse_moment"):
        other.load_state_dict(one.state_dict())


def test_wide_weights_and_captured_layers() -> None:
    torch.manual_seed(0)
    layer = OrthogonalLinear(8, 5, bias=False)
    twin = torch.nn.Parameter(layer.weight.detach().mT.clone())
    optimizer = NaturalSGD(layer.parameters(), 0.3)
    by_hand = NaturalSGD([twin], 0.3)
    capture_factors(layer)
    for _ in range(3):
        x = torch.randn(4, 8, requires_grad=True)
        target = torch.randn(4, 5)
        y = layer(x)
        error = (y - target).detach()
        optimizer.zero_grad()
        ((y - target) ** 2).sum().div(2).backward()
        optimizer.step()
        by_hand.step(factors={twin: (x.detach().mT, error.mT)})
        torch.testing.assert_close(layer.weight.detach().mT, twin.detach())
    assert "natural" in reasons_of(optimizer)


def test_a_first_gradient_of_zeros_says_nothing() -> None:
    X, state = point(1, 9, 5), {}
    zeros = torch.zeros(1, 9, 2, dtype=torch.float64), torch.zeros(1, 5, 2, dtype=torch.float64)
    A, B, finite = natural_factors(state, X, *zeros)
    assert bool(finite) and not (A @ B.mT).any()
    pair = random_factors(1, 9, 5, 2, 0)
    after = natural_factors(state, X, *pair)
    alone = natural_factors({}, X, *pair)
    torch.testing.assert_close(after[0] @ after[1].mT, alone[0] @ alone[1].mT)


@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e8])
def test_float32_of_any_scale_stays_on_the_manifold(scale: float) -> None:
    stream = Stream()
    p = torch.nn.Parameter(stream.start.float())
    optimizer = NaturalSGD([p], 0.16 / scale)
    for _ in range(40):
        A, B = stream.factors(p.detach())
        optimizer.step(factors={p: (A * scale, B)})
    assert stream.gap(p.detach()) < 0.05
    assert float((p.detach().mT @ p.detach() - torch.eye(40)).norm()) / math.sqrt(40) < 1e-6


def test_a_moment_that_is_not_positive_is_told() -> None:
    p = torch.nn.Parameter(orthogonal_(torch.empty(6, 4)))
    optimizer = NaturalSGD([p], 0.1)
    pair = torch.randn(6, 2), torch.randn(4, 2)
    optimizer.step(factors={p: pair})
    optimizer.state[p]["inverse_moment"].neg_()
    before = p.detach().clone()
    with pytest.raises(RuntimeError, match="positive definite"):
        optimizer.step(factors={p: (8 * pair[0], pair[1])})
    assert torch.equal(p.detach(), before)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("place", [0, 1])
def test_bad_factors_change_nothing(bad: float, place: int) -> None:
    p = torch.nn.Parameter(orthogonal_(torch.empty(6, 4)))
    optimizer = NaturalSGD([p], 0.1)
    good = torch.randn(6, 2), torch.randn(4, 2)
    optimizer.step(factors={p: good})
    before, state = p.detach().clone(), copy.deepcopy(dict(optimizer.state[p]))
    spoilt = [F.clone() for F in good]
    spoilt[place][1, 1] = bad
    with pytest.raises(NonFiniteGradientError, match="Nothing was changed"):
        optimizer.step(factors={p: tuple(spoilt)})  # type: ignore[dict-item]
    assert torch.equal(p.detach(), before)
    assert is_as(state, optimizer.state[p])
    optimizer.param_groups[0]["nonfinite"] = "skip"
    optimizer.step(factors={p: tuple(spoilt)})  # type: ignore[dict-item]
    assert int(optimizer.state[p]["skipped"]) == 1 and torch.equal(p.detach(), before)


@pytest.mark.parametrize("ratio", [2.0, 30.0, 1e4, 1e12])
def test_a_gradient_far_above_the_first_begins_anew(ratio: float) -> None:
    X, state = point(2, 9, 5).float(), {}
    (A, B), first = (tuple(F.float() for F in random_factors(2, 9, 5, 2, seed)) for seed in (0, 1))
    for _ in range(5):
        natural_factors(state, X, first[0] / ratio, first[1])
    found, alone = natural_factors(state, X, A, B), natural_factors({}, X, A, B)
    same = torch.allclose(found[0] @ found[1].mT, alone[0] @ alone[1].mT, rtol=1e-3, atol=1e-5)
    assert same == (ratio > GROWTH)


@pytest.mark.parametrize("rank", [1, 3, 16])
@pytest.mark.parametrize("ratio", [1.0, 9.0, 300.0, 1e6])
def test_samples_that_come_again_leave_the_moment_positive(rank: int, ratio: float) -> None:
    g = torch.Generator().manual_seed(0)
    X, state = point(1, 64, 48).float(), {}
    basis = torch.randn(1, 48, rank, generator=g)
    for n in range(60):
        mixed = torch.randn(1, rank, 16, generator=g)
        B = basis @ mixed if rank > 1 else basis.repeat(1, 1, 16)
        A = torch.randn(1, 64, 16, generator=g) * (ratio if n else 1)
        *_, finite = natural_factors(state, X, A, B)
        assert bool(finite)
    assert float(torch.linalg.eigvalsh(state["inverse_moment"].double())[0, 0]) > 0


def test_samples_along_axes_do_not_hide_the_least_moment() -> None:
    X, state = torch.eye(8)[None], {}
    for axis in [*(2 + n % 6 for n in range(300)), 1, *(2 + n % 6 for n in range(300)), *[0] * 100]:
        A, B = X[..., (axis + 1) % 8, None].clone(), X[..., axis, None].clone()
        natural_factors(state, X, A, B)
        H, v = state["inverse_moment"][0], state["moment_direction"][0]
        assert float((H @ v).norm()) > 0.5 * float(torch.linalg.matrix_norm(H, 2))


def test_what_does_not_go_together_is_refused() -> None:
    p = torch.nn.Parameter(orthogonal_(torch.empty(6, 4)))
    for make in (AngleSGD, FlowSGD, FlowAdam):
        with pytest.raises(TypeError, match="`natural` is not an option any more.*`NaturalSGD`"):
            make([p], 0.1, natural=True)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="`natural` is not an option any more.*`NaturalSGD`"):
            make([{"params": [p], "natural": True}], 0.1)
    for option in ({"momentum": 0.9}, {"betas": (0.9, 0.99)}, {"factor_window": 8}):
        with pytest.raises(ValueError, match="is not an option of this optimiser"):
            NaturalSGD([{"params": [p], **option}], 0.1)
    with pytest.raises(ValueError, match="natural steps are exact: a group has block_size=2"):
        NaturalSGD([{"params": [p], "block_size": 2}], 0.1)
    with pytest.raises(ValueError, match="retraction='cayley'"):
        NaturalSGD([{"params": [p], "retraction": "cayley"}], 0.1)
    with pytest.raises(ValueError, match="`natural` is True for all weights"):
        NaturalSGD([{"params": [p], "natural": False}], 0.1)


@pytest.mark.parametrize("later", [False, True])
def test_a_gradient_is_refused(later: bool) -> None:
    p = torch.nn.Parameter(orthogonal_(torch.empty(6, 4)))
    optimizer = NaturalSGD([p], 0.1)
    assert "natural steps by factors" in reasons_of(optimizer)
    if later:
        optimizer.step(factors={p: (torch.randn(6, 1), torch.randn(4, 1))})
    p.grad = torch.randn(6, 4)
    before = p.detach().clone()
    with pytest.raises(FactorError, match="natural steps need the factors"):
        optimizer.step()
    assert torch.equal(p.detach(), before)


def test_two_weights_and_one_that_is_bad_change_nothing() -> None:
    p, q = (torch.nn.Parameter(orthogonal_(torch.empty(6, 4))) for _ in range(2))
    optimizer = NaturalSGD([p, q], 0.1)
    good = torch.randn(6, 2), torch.randn(4, 2)
    optimizer.step(factors={p: good, q: good})
    before = p.detach().clone(), q.detach().clone()
    with pytest.raises(NonFiniteGradientError, match="parameter 1"):
        optimizer.step(factors={p: good, q: (4e17 * good[0], good[1])})
    assert torch.equal(p.detach(), before[0]) and torch.equal(q.detach(), before[1])


@pytest.mark.parametrize("lost", ["moment_numbers", "moment_direction", "inverse_moment"])
def test_a_state_with_half_a_moment_is_refused(lost: str) -> None:
    p = torch.nn.Parameter(orthogonal_(torch.empty(6, 4)))
    optimizer = NaturalSGD([p], 0.1)
    optimizer.step(factors={p: (torch.randn(6, 2), torch.randn(4, 2))})
    saved = optimizer.state_dict()
    del saved["state"][0][lost]
    with pytest.raises(ValueError, match=f"no `{lost}`"):
        optimizer.load_state_dict(saved)


def test_a_moment_begun_in_inference_mode_goes_on_outside() -> None:
    p = torch.nn.Parameter(orthogonal_(torch.empty(6, 4)))
    optimizer = NaturalSGD([p], 0.1)
    pair = torch.randn(6, 2), torch.randn(4, 2)
    with torch.inference_mode():
        optimizer.step(factors={p: pair})
    optimizer.step(factors={p: pair})


def test_a_half_weight_has_a_moment_of_float32() -> None:
    p = torch.nn.Parameter(orthogonal_(torch.empty(12, 8)).bfloat16())
    optimizer = NaturalSGD([p], 0.1)
    for _ in range(3):
        optimizer.step(factors={p: (torch.randn(12, 2), torch.randn(8, 2))})
    assert optimizer.state[p]["inverse_moment"].dtype == torch.float32
    assert p.dtype == torch.bfloat16


def test_a_weight_that_becomes_double_takes_its_moment_along() -> None:
    p = torch.nn.Parameter(orthogonal_(torch.empty(12, 8)))
    optimizer = NaturalSGD([p], 0.1)
    pair = torch.randn(12, 2), torch.randn(8, 2)
    optimizer.step(factors={p: pair})
    moment = optimizer.state[p]["inverse_moment"].double()
    p.data = torch.linalg.qr(p.data.double()).Q
    optimizer.step(factors={p: (0 * pair[0], pair[1])})
    torch.testing.assert_close(optimizer.state[p]["inverse_moment"], moment)


def test_a_gradient_that_all_but_vanishes_is_one_of_zeros() -> None:
    p = torch.nn.Parameter(orthogonal_(torch.empty(9, 4)))
    before, optimizer = p.detach().clone(), NaturalSGD([p], 0.1)
    A, B = (F[0].float() for F in random_factors(1, 9, 4, 1, 0))
    optimizer.step(factors={p: (1e-40 * A, B)})
    assert torch.equal(p.detach(), before) and not optimizer.state[p]["moment_numbers"].any()
    optimizer.step(factors={p: (A, B)})
    assert not torch.equal(p.detach(), before) and optimizer.state[p]["moment_numbers"].all()


def test_one_matrix_that_is_not_finite_leaves_the_moments_of_all() -> None:
    X, state = point(2, 9, 4), {}
    for seed in range(3):
        natural_factors(state, X, *random_factors(2, 9, 4, 2, seed))
    before = copy.deepcopy(state)
    A, B = random_factors(2, 9, 4, 2, 5)
    A[0] *= 100 * GROWTH
    A[1, 0, 0] = math.nan
    *_, finite = natural_factors(state, X, A, B)
    assert not finite and is_as(before, state)


def test_a_moment_that_moves_in_inference_mode_goes_on_outside_of_it() -> None:
    p = torch.nn.Parameter(orthogonal_(torch.empty(9, 4)))
    optimizer = NaturalSGD([p], 0.1)
    A, B = (F[0].float() for F in random_factors(1, 9, 4, 1, 0))
    optimizer.step(factors={p: (A, B)})
    p.data = p.data.double()
    with torch.inference_mode():
        optimizer.step(factors={p: (A.double(), B.double())})
    optimizer.step(factors={p: (A.double(), B.double())})
