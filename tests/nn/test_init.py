import pytest
import torch

from skewflow.errors import DtypeError, ShapeError
from skewflow.geometry import check_stiefel
from skewflow.geometry.matrices import MatrixView, as_matrices
from skewflow.nn import orthogonal_

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


@pytest.mark.bad_input
def test_tensors_that_cannot_be_orthogonal_are_refused():
    with pytest.raises(ShapeError, match="at least two dimensions.*biases"):
        orthogonal_(torch.empty(3))
    with pytest.raises(ShapeError, match="must not be empty"):
        orthogonal_(torch.empty(0, 3))
    with pytest.raises(DtypeError, match="real floating-point"):
        orthogonal_(torch.zeros(3, 3, dtype=torch.int64))
