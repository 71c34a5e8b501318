import pytest
import torch

from helpers import assert_close
from skewflow.errors import DtypeError, ShapeError
from skewflow.geometry import check_stiefel
from skewflow.geometry.matrices import MatrixView, as_matrices
from skewflow.nn import orthogonal_, torus_
from skewflow.optim import FlowSGD

SHAPES = [
    (5, 5),
    (7, 3),
    (3, 7),
    (4, 6, 5),
    (4, 5, 6),
    (8, 3, 3, 3),
    (40, 2, 3, 3),
    (6, 2, 2, 3, 3),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_every_weight_becomes_orthogonal_in_place(shape, dtype, generator):
    tensor = torch.full(shape, torch.nan, dtype=dtype)
    assert orthogonal_(tensor, generator=generator) is tensor
    assert check_stiefel(as_matrices(tensor))


def test_parameters_and_strided_weights_are_filled_in_place(generator):
    parameter = torch.nn.Parameter(torch.empty(4, 9))
    orthogonal_(parameter, generator=generator)
    assert parameter.requires_grad and check_stiefel(parameter.detach().mT)
    strided = torch.zeros(8, 12)[::2, 1:10]
    orthogonal_(strided, generator=generator)
    assert check_stiefel(strided.mT)


def test_the_matrices_of_a_batch_differ_and_the_generator_decides(generator):
    first = orthogonal_(torch.empty(2, 5, 5), generator=torch.Generator().manual_seed(3))
    second = orthogonal_(torch.empty(2, 5, 5), generator=torch.Generator().manual_seed(3))
    assert torch.equal(first, second) and not torch.equal(first[0], first[1])


@pytest.mark.parametrize("shape", [(4, 3, 5), (3, 40, 2), (8, 3, 3, 3), (6, 2, 2, 3, 3)], ids=str)
@pytest.mark.parametrize("layout", ["convolution", "transposed convolution"])
def test_the_matrix_of_a_convolution_leads_back(shape, layout):
    for format in (torch.contiguous_format, torch.channels_last):
        if format == torch.channels_last and len(shape) != 4:
            continue
        weight = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
        weight = torch.nn.Parameter(weight.to(memory_format=format))
        weight.orthogonal_layout = layout
        view = MatrixView.of(weight)
        X, first = view(weight), 1 if layout == "transposed convolution" else 0
        filters = X[0].mT if X.shape[-1] == shape[first] else X[0]
        expected = weight.movedim(first, 0).flatten(1)
        assert torch.equal(filters.sort().values, expected.sort().values)
        assert torch.equal(view.restore(X), weight)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_matrices_are_a_view_and_lead_back(shape, channels_last):
    weight = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    if channels_last and len(shape) == 4:
        weight = weight.to(memory_format=torch.channels_last)
    view = MatrixView.of(weight)
    X = view(weight)
    n, d, k = view.matrices
    assert X.shape == (n, d, k) and d >= k and X.data_ptr() == weight.data_ptr()
    assert torch.equal(view.restore(X), weight)


def test_a_weight_drawn_under_autocast_is_the_same_and_the_optimiser_takes_it_there():
    expected = orthogonal_(torch.empty(9, 5), generator=torch.Generator().manual_seed(0))
    weight = torch.nn.Parameter(torch.empty(9, 5))
    with torch.autocast("cpu", torch.bfloat16):
        orthogonal_(weight, generator=torch.Generator().manual_seed(0))
        FlowSGD([weight], lr=0.1)
    assert torch.equal(weight, expected)


@pytest.mark.bad_input
def test_tensors_that_cannot_be_orthogonal_are_refused():
    with pytest.raises(ShapeError, match="at least two dimensions.*biases"):
        orthogonal_(torch.empty(3))
    with pytest.raises(ShapeError, match="must not be empty"):
        orthogonal_(torch.empty(0, 3))
    with pytest.raises(DtypeError, match="real floating-point"):
        orthogonal_(torch.zeros(3, 3, dtype=torch.int64))


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (7, 7), (3, 6, 6)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_torus_holds_turns_of_pairs(shape, dtype, generator):
    w = torus_(torch.full(shape, torch.nan, dtype=dtype), generator=generator)
    assert_close("orthogonal", torch.eye(shape[-1]).expand(shape), w @ w.mT, dtype)
    pairs = torch.arange(shape[-1]) // 2
    assert not w[..., pairs[:, None] != pairs].any()
    if dtype == torch.float64:
        assert_close("turns, no flips", torch.ones(shape[:-2]), torch.linalg.det(w))


def test_the_angles_of_the_torus_are_uniform(generator):
    w = torus_(torch.empty(4000, 4000), generator=generator)
    angles = torch.atan2(w.diagonal(-1)[::2], w.diagonal()[::2])
    counts = torch.histc(angles, 20, -torch.pi, torch.pi)
    assert (counts - 100).square().sum() / 100 < 43.8  # chi-square, 19 degrees: one in a thousand


@pytest.mark.bad_input
def test_the_torus_refuses_what_is_not_square():
    with pytest.raises(ShapeError, match=r"square.*got \(3, 4\). Use `orthogonal_`"):
        torus_(torch.empty(3, 4))
