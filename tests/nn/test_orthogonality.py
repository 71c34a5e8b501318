"""One number for any weight or model, as the optimiser sees it, and the way back."""

import math

import pytest
import torch
from torch import nn

from helpers import EPS, assert_close, numbers_of, randn
from skewflow import geometry
from skewflow.errors import DtypeError, ShapeError
from skewflow.nn import (
    OrthogonalConv2d,
    OrthogonalLinear,
    mark_orthogonal,
    orthogonal_,
    orthogonality_error,
    orthogonality_errors,
    project_,
)
from skewflow.optim import FlowSGD

SHAPES = [(5, 5), (7, 3), (3, 7), (4, 6, 5), (4, 5, 6), (8, 3, 3, 3), (40, 2, 3, 3)]


def expected_error(weight):
    """By hand: the worst of the matrices, over the root of its columns."""
    matrices = [weight.flatten(1)] if weight.ndim > 3 else weight.reshape(-1, *weight.shape[-2:])
    errors = []
    for W in matrices:
        W = W if W.shape[0] >= W.shape[1] else W.mT
        k = W.shape[1]
        errors.append(torch.linalg.matrix_norm(W.mT @ W - torch.eye(k).to(W)) / k**0.5)
    return max(errors)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_error_of_any_weight_is_that_of_its_worst_matrix(shape, generator):
    weight = nn.Parameter(randn(*shape, generator=generator))
    assert_close("error", expected_error(weight), orthogonality_error(weight))
    orthogonal_(weight, generator=generator)
    error = orthogonality_error(weight)
    assert isinstance(error, float) and error < EPS[torch.float64]


def test_the_error_of_a_model_is_the_largest_of_its_marked_weights():
    model = nn.ModuleDict(
        {
            "conv": OrthogonalConv2d(3, 8, 3),
            "conv1d": nn.Conv1d(3, 16, 5),
            "deconv": nn.ConvTranspose2d(2, 30, 3),
            "wide": OrthogonalLinear(9, 4),
            "head": nn.Linear(4, 2),
        }
    )
    for name in ("conv1d", "deconv"):
        mark_orthogonal(model[name], "weight")
    errors = orthogonality_errors(model)
    assert list(errors) == ["conv.weight", "conv1d.weight", "deconv.weight", "wide.weight"]
    assert max(errors.values()) < EPS[torch.float32]
    with torch.no_grad():
        model["wide"].weight *= 2
    assert orthogonality_error(model) == orthogonality_errors(model)["wide.weight"]
    assert_close("error", 3.0, orthogonality_error(model), torch.float32)


def test_weights_that_are_not_marked_are_chosen_by_name():
    model = nn.RNN(3, 5)
    orthogonal_(model.weight_hh_l0)
    assert orthogonality_errors(model, "weight_hh*")["weight_hh_l0"] < EPS[torch.float32]
    with pytest.raises(ValueError, match="chose none"):
        orthogonality_error(model)


def test_it_is_the_number_of_a_report(generator):
    weight = nn.Parameter(orthogonal_(torch.empty(4, 9), generator=generator))
    optimizer = FlowSGD([weight], lr=0.1, block_size=2)
    weight.grad = torch.randn(4, 9, generator=generator)
    assert orthogonality_error(weight) == numbers_of(optimizer.report())[0].orthogonality_error


def test_a_weight_that_is_not_finite_has_no_error_as_a_number():
    model = nn.Sequential(OrthogonalLinear(3, 3), OrthogonalLinear(3, 3))
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    assert math.isnan(orthogonality_error(model[0].weight))
    assert math.isnan(orthogonality_error(model))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_half_weight_shows_its_own_rounding(dtype, generator):
    weight = orthogonal_(torch.empty(32, 32, dtype=dtype), generator=generator)
    error = orthogonality_error(weight)
    assert torch.finfo(dtype).eps / 10 < error < torch.finfo(dtype).eps
    with torch.autocast("cpu", torch.bfloat16):
        assert orthogonality_error(weight) == error


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_projected_weight_is_the_nearest_that_the_optimiser_takes(shape, generator):
    weight = nn.Parameter(orthogonal_(torch.empty(shape).double(), generator=generator))
    before = weight.detach().clone()
    with torch.no_grad():
        weight *= 2  # its nearest point is where it was
    assert project_(weight) is weight
    assert_close("weight", before, weight)
    FlowSGD([weight], lr=0.1)


def test_a_projected_conv1d_is_the_nearest_that_the_optimiser_takes():
    layer = nn.Conv1d(3, 16, 5, dtype=torch.float64)
    mark_orthogonal(layer, "weight")
    before = layer.weight.detach().clone()
    with torch.no_grad():
        layer.weight *= 2
    assert_close("weight", before, project_(layer.weight))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "function", [geometry.orthogonality_error, geometry.check_stiefel, geometry.project]
)
def test_the_functions_of_matrices_refuse_a_convolution_weight(function):
    conv = OrthogonalConv2d(3, 16, 3)
    message = r"got a parameter of shape \(16, 3, 3, 3\).*nn\.orthogonality_error.*nn\.project_"
    with pytest.raises(ShapeError, match=message):
        function(conv.weight)
    conv1d = nn.Conv1d(5, 16, 3)
    mark_orthogonal(conv1d, "weight")
    with pytest.raises(ShapeError, match=r"got a parameter of shape \(16, 5, 3\)"):
        function(conv1d.weight)
    function(geometry.haar(3, 2, batch=(4, 5)))  # a batch stays one


@pytest.mark.bad_input
@pytest.mark.parametrize("function", [orthogonality_error, project_])
def test_what_is_no_weight_is_refused(function):
    with pytest.raises(ShapeError, match="at least two dimensions"):
        function(torch.zeros(3))
    with pytest.raises(DtypeError, match="`weight` must be a torch.Tensor: got list"):
        function([1.0])
    with pytest.raises(DtypeError, match="`weight` must be a real floating-point tensor"):
        function(torch.zeros(3, 3, dtype=torch.int64))
