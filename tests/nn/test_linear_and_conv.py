import pytest
import torch

from helpers import assert_close, randn
from skewflow.errors import DtypeError
from skewflow.nn import OrthogonalConv2d, OrthogonalLinear


def test_a_tall_layer_keeps_lengths_and_a_wide_one_keeps_those_of_its_row_space(generator):
    x = randn(5, 4, generator=generator)
    tall = OrthogonalLinear(4, 9, bias=False, dtype=torch.float64)
    assert_close("tall", x.norm(dim=-1), tall(x).norm(dim=-1))
    wide = OrthogonalLinear(9, 4, bias=False, dtype=torch.float64)
    assert_close("wide", x, wide(x @ wide.weight))


def test_the_bias_starts_as_that_of_torch():
    torch.manual_seed(0)
    assert OrthogonalLinear(10_000, 3).bias.abs().max() <= 1e-2
    assert OrthogonalLinear(3, 2, bias=False).bias is None


@pytest.mark.bad_input
def test_a_layer_of_complex_numbers_is_refused():
    with pytest.raises(DtypeError, match="real floating-point"):
        OrthogonalLinear(3, 3, dtype=torch.complex64)


def operator(layer, channels, size):
    """A convolution without bias as a matrix, from images to images."""
    images = torch.eye(channels * size * size, dtype=torch.float64)
    return layer(images.reshape(-1, channels, size, size)).flatten(1).mT.detach()


def test_a_convolution_is_orthogonal_exactly_where_its_patches_do_not_overlap():
    options = {"bias": False, "dtype": torch.float64}
    apart = operator(OrthogonalConv2d(2, 8, 2, stride=2, **options), 2, 4)
    assert_close("apart", torch.eye(32), apart.mT @ apart)
    singular = torch.linalg.svdvals(operator(OrthogonalConv2d(2, 8, 2, **options), 2, 4))
    assert 1.1 < singular[0] <= 2 + 1e-12  # a pixel lies in up to four patches


@pytest.mark.bad_input
@pytest.mark.parametrize("arguments, options", [((1, 0, 1, 2), {}), ((), {"groups": 2})])
def test_groups_are_refused_with_the_way_out(arguments, options):
    with pytest.raises(ValueError, match="`groups` must be 1: got 2.*one OrthogonalConv2d for"):
        OrthogonalConv2d(4, 4, 3, *arguments, **options)
