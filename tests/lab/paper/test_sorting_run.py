"""The fused runs of Table 2: against the readable integrator, scipy, and themselves in chunks."""

import io

import numpy as np
import pytest
import torch

from flow_cases import solution
from helpers import assert_close, random_skew, random_stiefel, scipy_expm, with_norm
from skewflow import geometry
from skewflow.errors import DtypeError, NonFiniteError, NotOnManifoldError, ShapeError
from skewflow.flows import integrate, sorting_field
from skewflow.samplers import RoundRobin
from skewflow_lab.paper.table2 import sorting_run as module
from skewflow_lab.paper.table2.exponential_cpu import apply_taylor
from skewflow_lab.paper.table2.sorting_run import SortingRun

METHODS = ["matchings", "exp", "taylor"]


def make(q, X0, eta, method, seed=0, terms=20):
    return SortingRun(
        q,
        X0,
        eta,
        method,
        terms=terms if method == "taylor" else None,
        generator=torch.Generator().manual_seed(seed) if method == "matchings" else None,
    )


def data(d, generator, b=3, scale=1.0):
    q = scale * torch.rand(b, d, generator=generator, dtype=torch.float64)
    return q, random_stiefel(d, generator=generator, batch=(b,))


@pytest.mark.parametrize("d", [2, 3, 5, 16])
@pytest.mark.parametrize("norm", [1e-9, 1e-3, 9e-3, 0.02, 0.4, 3.0, 40.0, 1000.0])
def test_the_fused_exponential_is_scipys(d, norm, generator):
    q, X = data(d, generator, b=1)
    omega = sorting_field(q)(0.0, X)
    run = make(q, X, norm / torch.linalg.matrix_norm(omega, 2).item(), "exp")
    run.advance(1)
    Y, expected = run.points[0], X[0] @ scipy_expm(with_norm(omega, norm)[0])
    # Both sides lose digits in proportion to the norm.
    assert_close("X exp(A)", expected, Y, factor=max(1.0, norm / 10))
    assert_close("Y^T Y", torch.eye(d, dtype=torch.float64), Y.mT @ Y, factor=max(1.0, norm / 10))


@pytest.mark.parametrize("terms", [1, 2, 5, 20, 100])
@pytest.mark.parametrize("norm", [1e-9, 1e-3, 1.0, 10.0])
def test_the_fused_series_is_the_series_of_geometry(terms, norm, generator):
    A = with_norm(random_skew(7, generator=generator), norm)
    X = random_stiefel(7, generator=generator)
    Y = X.clone()
    apply_taylor(A.numpy(), Y.numpy(), terms, np.empty((3, 7, 7)))
    # The largest term, norm^10 / 10!, is about 3000, and is rounded in another order.
    assert_close("series", geometry.taylor(A, terms) @ X, Y)


@pytest.mark.parametrize("d", [2, 5, 16])
@pytest.mark.parametrize("method", METHODS)
def test_a_fused_run_is_the_readable_integrator(method, d, generator):
    q, X0 = data(d, generator)
    run = make(q, X0, 0.02, method, seed=7)
    run.advance(60)
    options = {
        "matchings": {
            "sampler": RoundRobin(replacement=True),
            "generator": torch.Generator().manual_seed(7),
        },
        "exp": {},
        "taylor": {"retraction": lambda A: geometry.taylor(A, 20)},
    }[method]
    expected = integrate(sorting_field(q), X0, 0.02, 60, **options).last
    # Rounding of 60 steps that expand distances away from the sorted point.
    assert_close("X", expected, run.points, factor=10)
    assert run.step == 60


def test_small_exact_steps_follow_the_solution_of_the_equation(generator):
    q, X0 = data(5, generator, b=1)
    exact = solution(sorting_field(q), X0, 0.0, 1.0)
    errors = []
    for n in (20_000, 40_000):
        run = make(q, X0, 1.0 / n, "exp")
        run.advance(n)
        errors.append((run.points - exact).norm().item())
    assert errors[1] < 1e-4
    assert 1.9 < errors[0] / errors[1] < 2.1  # first order


@pytest.mark.parametrize("method", METHODS)
def test_chunks_and_saving_do_not_change_a_bit(method, generator, monkeypatch):
    q, X0 = data(6, generator, scale=5.0)
    whole = make(q, X0, 0.01, method)
    whole.advance(1000)
    monkeypatch.setattr(module, "DRAWS_AT_ONCE", 37)
    parts = make(q, X0, 0.01, method)
    for n in (1, 250, 499):
        parts.advance(n)
        file = io.BytesIO()
        torch.save(parts.state_dict(), file)
        file.seek(0)
        parts = make(q, X0, 0.01, method, seed=99)
        parts.load_state_dict(torch.load(file, weights_only=True))
    parts.advance(250)
    assert parts.step == whole.step
    assert torch.equal(whole.points, parts.points)


@pytest.mark.parametrize("method", ["exp", "taylor"])
def test_a_sequence_does_not_notice_its_neighbours(method, generator):
    q, X0 = data(6, generator)
    together = make(q, X0, 0.05, method)
    together.advance(50)
    alone = make(q[1:2], X0[1:2], 0.05, method)
    alone.advance(50)
    assert torch.equal(together.points[1:2], alone.points)


@pytest.mark.parametrize("method", ["matchings", "exp"])
def test_runs_sort_and_stay_orthogonal(method, generator):
    q, X0 = data(8, generator, scale=10.0)
    run = make(q, X0, 1e-3, method)
    run.advance(50_000)
    scores = run.scores()
    assert scores.inv.tolist() == [1.0, 1.0, 1.0]
    assert scores.epsilon.max() < 1e-11
    assert not scores.diverged.any()


def test_above_the_stable_step_exact_runs_fail_to_sort_but_stay_finite(generator):
    q, X0 = data(16, generator, scale=100.0)
    run = make(q, X0, 0.15, "exp")
    run.advance(333)
    scores = run.scores()
    assert scores.epsilon.max() < 1e-11
    assert scores.inv.max() < 0.9


def test_a_truncated_series_overflows_and_says_so(generator):
    q, X0 = data(16, generator, scale=1e4)
    q[0] *= 1e-5  # this one is tame
    run = make(q, X0, 0.15, "taylor")
    run.advance(200)
    scores = run.scores()
    assert scores.diverged.tolist() == [False, True, True]
    assert scores.epsilon.isnan().tolist() == [False, True, True]
    assert scores.inv[1:].tolist() == [0.0, 0.0]
    first = run.state_dict()["diverged_at"]
    assert first[0] == -1 and (first[1:] >= 0).all()
    again = make(q, X0, 0.15, "taylor")
    again.advance(int(first[1]))
    assert torch.isfinite(again.points[1]).all()
    again.advance(1)
    assert not torch.isfinite(again.points[1]).all()


def test_a_run_leaves_its_arguments_alone(generator):
    q, X0 = data(4, generator)
    before = X0.clone()
    run = make(q, X0, 0.1, "exp")
    run.advance(5)
    assert torch.equal(before, X0)
    assert not torch.equal(run.points, X0)


@pytest.mark.bad_input
def test_bad_input_is_refused_with_a_reason(generator):
    q, X0 = data(4, generator)
    with pytest.raises(DtypeError, match="`q` must be a float64 tensor on the CPU"):
        SortingRun(q.float(), X0, 0.1, "exp")
    with pytest.raises(ShapeError, match=r"`q` must be \(b, d\)"):
        SortingRun(q[0], X0, 0.1, "exp")
    with pytest.raises(NonFiniteError, match="must be finite: got eta=inf"):
        SortingRun(q, X0, float("inf"), "exp")
    with pytest.raises(NotOnManifoldError, match="not orthonormal"):
        SortingRun(q, 2 * X0, 0.1, "exp")
    with pytest.raises(ValueError, match="`method` must be one of"):
        SortingRun(q, X0, 0.1, "cayley")
    with pytest.raises(ValueError, match='`terms` is for method="taylor"'):
        SortingRun(q, X0, 0.1, "taylor")
    with pytest.raises(ValueError, match="`terms` must be a whole number"):
        SortingRun(q, X0, 0.1, "taylor", terms=0)
    with pytest.raises(ValueError, match="got none with method='matchings'"):
        SortingRun(q, X0, 0.1, "matchings")
    run = SortingRun(q, X0, 0.1, "exp")
    with pytest.raises(ValueError, match="`num_steps` must be a whole number"):
        run.advance(0)
    with pytest.raises(ValueError, match="has the keys"):
        run.load_state_dict({"X": X0})
    with pytest.raises(ValueError, match="belongs to another run"):
        run.load_state_dict(make(q[:1], X0[:1], 0.1, "exp").state_dict())
