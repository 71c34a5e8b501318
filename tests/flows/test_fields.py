"""Fields: generators against closed forms, lazy views against dense ones, and where flows end."""

import pytest
import torch

from flow_cases import symmetric
from helpers import assert_close, randn, random_stiefel
from skewflow import geometry
from skewflow.errors import DtypeError, ShapeError
from skewflow.flows import (
    Brockett,
    Field,
    GaussianField,
    GradientField,
    RandomWalkField,
    integrate,
)
from skewflow.samplers import Uniform


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_gradient_field_is_omega_of_the_gradient(side, generator):
    B, C = randn(4, 4, generator=generator), randn(4, 4, generator=generator)
    X = random_stiefel(4, generator=generator, batch=(3,))
    field = GradientField(lambda X: ((B @ X) * X).sum((-2, -1)) + (C * X**3).sum((-2, -1)), side)
    G = (B + B.mT) @ X + 3 * C * X**2
    assert_close("G", G, field.gradient(X))
    assert_close("omega", geometry.omega(X, G, side), field(0.0, X))


def test_a_gradient_field_does_not_touch_its_point_and_works_without_grad(generator):
    X = random_stiefel(4, generator=generator)
    with torch.no_grad():
        GradientField(lambda X: X[..., 0, 0])(0.0, X)
    assert not X.requires_grad and X.grad is None


@pytest.mark.parametrize("side", ["left", "right"])
def test_lazy_weights_are_the_entries_of_the_generator(side, generator):
    X = random_stiefel(5, generator=generator, batch=(2, 2))
    A, n = symmetric(5, generator), randn(5, generator=generator)
    brockett = Brockett(A, n, side)
    for field in (brockett, Field(brockett, side)):
        weights = field.edge_weights(0.0, X)
        lazy = torch.stack([W.dense() for W in weights]).view(2, 2, 5, 5)
        assert_close("omega", field(0.0, X), lazy)
    assert brockett.edge_weights(0.0, X)[0].evaluated == 0


@pytest.mark.parametrize("side", ["left", "right"])
def test_brocketts_gradient_is_that_of_its_value(side, generator):
    A, n = symmetric(4, generator), randn(4, generator=generator)
    X = random_stiefel(4, generator=generator, batch=(2,))
    field = Brockett(A, n, side)
    value = lambda X: torch.einsum("bij,ik,bkj,j->b", X, A, X, n) / 2  # noqa: E731
    assert_close("F", value(X), field.value(X))
    assert_close("G", GradientField(value).gradient(X), field.gradient(X))


@pytest.mark.many_calls
@pytest.mark.parametrize("sampler, eta", [(None, 0.05), (Uniform(2), 0.01)])
def test_brocketts_flow_ends_at_the_leading_eigenvectors(sampler, eta, generator):
    U = random_stiefel(6, generator=generator)
    A = U @ torch.diag(torch.tensor([5.0, 4.0, 3.0, 1.0, 0.5, 0.1], dtype=torch.float64)) @ U.mT
    field = Brockett(A, torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    X0 = random_stiefel(6, 3, generator=generator)
    X = integrate(field, X0, eta, 3000, sampler=sampler, generator=generator).last
    assert_close("|U^T X|", torch.eye(6, dtype=torch.float64)[:, :3], (U.mT @ X).abs(), factor=1e3)


def test_random_fields_have_the_stated_entries():
    g = torch.Generator().manual_seed(0)
    X = torch.eye(40, dtype=torch.float64)
    A = GaussianField(3.0, generator=g)(0.0, X)
    assert torch.equal(A, -A.mT)
    entries = A[torch.triu_indices(40, 40, 1).unbind()]
    # 780 Gaussians: the sample variance over 9 has the deviation sqrt(2/780) = 0.05.
    assert abs(entries.square().mean() / 9 - 1) < 0.25
    walk = RandomWalkField(0.5, generator=g)
    positions = [walk(0.0, X.expand(2, 40, 40)) for _ in range(9)]
    moves = torch.stack(positions).diff(dim=0)[..., 0, 1:]
    assert set(moves.flatten().tolist()) == {-0.5, 0.5}
    assert torch.equal(positions[-1], -positions[-1].mT)


def test_a_random_flow_keeps_the_determinant(generator):
    X0 = random_stiefel(5, generator=generator, batch=(3,))
    field = GaussianField(10.0, generator=generator)
    X = integrate(field, X0, 0.1, 50, sampler=Uniform(2), generator=generator).last
    assert_close("det", torch.linalg.det(X0), torch.linalg.det(X))


@pytest.mark.bad_input
def test_bad_fields_are_refused_with_a_reason(generator):
    X = random_stiefel(4, generator=generator, batch=(2,))
    with pytest.raises(ValueError, match="`side` must be one of"):
        Field(lambda t, X: X, side="both")
    with pytest.raises(ShapeError, match="`omega` must have shape"):
        Field(lambda t, X: X[0])(0.0, X)
    with pytest.raises(DtypeError, match="`omega` must have the dtype"):
        Field(lambda t, X: X.float())(0.0, X)
    with pytest.raises(ShapeError, match=r"one number for each matrix, shape \(2,\): got \(\)"):
        GradientField(lambda X: X.sum())(0.0, X)
    with pytest.raises(ValueError, match="`A` must be symmetric"):
        Brockett(torch.ones(3, 3).triu(), torch.ones(3))
    with pytest.raises(ShapeError, match="`weights` must be the diagonal of N"):
        Brockett(torch.eye(3), torch.eye(3))
    for scale in (0.0, float("inf")):
        with pytest.raises(ValueError, match="`scale` must be positive and finite"):
            GaussianField(scale, generator=generator)
