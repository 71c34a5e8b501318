import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal

from helpers import assert_close
from skewflow.errors import ShapeError
from skewflow.geometry import check_stiefel
from skewflow.geometry.matrices import MatrixView
from skewflow.nn import OrthogonalLinear, mark_orthogonal, orthogonal_, orthogonal_parameters
from skewflow.optim import FlowSGD, split_parameters

# From 3 to 4 channels the matrix of the paper is tall, from 2 to 60 it is wide.
CONVOLUTIONS = [
    (kind, channels)
    for kind in (
        nn.Conv1d,
        nn.Conv2d,
        nn.Conv3d,
        nn.ConvTranspose1d,
        nn.ConvTranspose2d,
        nn.ConvTranspose3d,
    )
    for channels in ((3, 4), (2, 60))
]
EACH = pytest.mark.parametrize(
    "kind, channels", CONVOLUTIONS, ids=[f"{kind.__name__}-{c}" for kind, c in CONVOLUTIONS]
)


def paper_matrix(layer, weight=None):
    """(kernel * C_in, C_out), one column for each output channel."""
    weight = layer.weight.detach() if weight is None else weight
    filters = weight.transpose(0, 1) if layer.transposed else weight
    return filters.flatten(1).mT


def names(parameters):
    return [name for name, _ in parameters]


def test_a_marked_weight_is_orthogonal_and_found_and_the_others_are_untouched(generator):
    model = nn.ModuleDict({"rnn": nn.RNN(3, 5), "head": nn.Linear(5, 2)})
    before = model["rnn"].weight_ih_l0.detach().clone()
    mark_orthogonal(model["rnn"], "weight_hh_l0", generator=generator)
    mark_orthogonal(model["rnn"], "weight_hh_l0", generator=generator)
    ours, rest = split_parameters(model)
    assert names(ours) == ["rnn.weight_hh_l0"] == names(orthogonal_parameters(model))
    assert len(rest) == 5 and torch.equal(model["rnn"].weight_ih_l0, before)
    assert check_stiefel(model["rnn"].weight_hh_l0.detach())


def test_marking_one_module_leaves_others_of_its_class_alone():
    first, second = OrthogonalLinear(3, 4), OrthogonalLinear(3, 4)
    first.register_parameter("extra", nn.Parameter(torch.empty(4, 2)))
    mark_orthogonal(first, "extra")
    assert names(orthogonal_parameters(first)) == ["weight", "extra"]
    assert names(orthogonal_parameters(second)) == ["weight"]


def test_a_mark_on_either_of_two_tied_layers_is_enough():
    model = nn.Sequential(nn.Linear(4, 4), OrthogonalLinear(4, 4))
    model[0].weight = model[1].weight
    assert names(orthogonal_parameters(model)) == ["0.weight"]


def test_a_trained_parametrised_weight_is_kept_when_the_mark_is_set_by_hand():
    layer = orthogonal(nn.Linear(5, 5))
    trained = layer.weight.detach().clone()
    layer.orthogonal_names = ("weight",)
    with pytest.raises(ValueError, match=r"the model \(ParametrizedLinear\).*remove_parametriz"):
        split_parameters(layer)
    nn.utils.parametrize.remove_parametrizations(layer, "weight")
    ours, rest = split_parameters(layer)
    assert names(ours) == ["weight"] and names(rest) == ["bias"]
    assert torch.equal(ours[0][1], trained)


@EACH
def test_a_marked_convolution_is_orthogonal_as_the_matrix_of_the_paper(kind, channels, generator):
    layer = kind(*channels, 3, dtype=torch.float64)
    mark_orthogonal(layer, "weight", generator=generator)
    matrix = paper_matrix(layer)
    assert matrix.shape == (channels[0] * 3 ** len(layer.kernel_size), channels[1])
    assert check_stiefel(matrix if matrix.shape[0] >= matrix.shape[1] else matrix.mT)
    assert MatrixView.of(layer.weight).matrices == (1, max(matrix.shape), min(matrix.shape))


@EACH
@pytest.mark.parametrize("block_size", [2, 3, "dense"])
def test_a_step_of_a_convolution_is_the_step_of_its_matrix(kind, channels, block_size, generator):
    layer = kind(*channels, 2, dtype=torch.float64)
    mark_orthogonal(layer, "weight", generator=generator)
    matrix = nn.Parameter(paper_matrix(layer).clone())
    options = {"lr": 0.02, "momentum": 0.9, "block_size": block_size}
    ours, plain = FlowSGD(split_parameters(layer)[0], **options), FlowSGD([matrix], **options)
    for _ in range(3):
        layer.weight.grad = torch.randn(layer.weight.shape, generator=generator).double()
        matrix.grad = paper_matrix(layer, layer.weight.grad).clone()
        ours.step()
        plain.step()
    assert_close("weight", matrix, paper_matrix(layer))


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.ConvTranspose2d], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer,
        copy.deepcopy,
        lambda layer: pickle.loads(pickle.dumps(layer)),
        lambda layer: layer.to("meta"),
        lambda layer: layer.half(),
        lambda layer: nn.Sequential(layer),
        lambda layer: torch.compile(layer, backend="eager"),
        lambda layer: layer.load_state_dict(layer.state_dict(), assign=True) and layer,
    ],
    ids=["none", "deepcopy", "pickle", "move", "half", "nested", "compile", "assigned"],
)
def test_a_convolution_is_read_as_one_whatever_becomes_of_its_module(kind, change):
    layer = kind(3, 4, 5)
    mark_orthogonal(layer, "weight")
    ((_, weight),) = orthogonal_parameters(change(layer))
    assert MatrixView.of(weight).matrices == (1, 3 * 5 ** len(layer.kernel_size), 4)


def test_at_stride_one_a_transposed_convolution_has_the_matrix_of_the_same_convolution():
    layer = nn.ConvTranspose2d(3, 4, 3, bias=False, dtype=torch.float64)
    mark_orthogonal(layer, "weight")
    same = nn.Conv2d(3, 4, 3, padding=2, bias=False, dtype=torch.float64)
    same.weight.data = layer.weight.data.transpose(0, 1).flip(2, 3)
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    assert_close("images", layer(x), same(x))
    assert check_stiefel(paper_matrix(same))


def test_a_weight_that_a_convolution_shares_with_its_transpose_is_read_as_the_first_reads_it():
    model = nn.ModuleDict({"encode": nn.Conv2d(3, 4, 2), "decode": nn.ConvTranspose2d(4, 3, 2)})
    model["decode"].weight = model["encode"].weight
    for name in ("encode", "decode"):
        mark_orthogonal(model[name], "weight")
    orthogonal_parameters(model)
    assert check_stiefel(paper_matrix(model["encode"]))


def test_a_bare_tensor_of_three_dimensions_is_a_batch_and_of_more_a_convolution():
    assert MatrixView.of(orthogonal_(torch.empty(16, 3, 5))).matrices == (16, 5, 3)
    assert MatrixView.of(orthogonal_(torch.empty(16, 3, 5, 5))).matrices == (1, 75, 16)
    assert MatrixView.of(orthogonal_(torch.empty(6, 2, 3, 3, 3))).matrices == (1, 54, 6)


@pytest.mark.bad_input
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d])
def test_grouped_convolutions_are_refused_and_not_changed(kind):
    layer = kind(8, 8, 3, groups=8)
    before = layer.weight.detach().clone()
    message = r"weight must be the kernel of .*groups=1.* has groups=8.*for each group of channels"
    with pytest.raises(ValueError, match=message):
        mark_orthogonal(layer, "weight")
    assert torch.equal(layer.weight, before) and not hasattr(layer, "orthogonal_names")
    layer.orthogonal_names = ("weight",)
    with pytest.raises(ValueError, match="0." + message):
        orthogonal_parameters(nn.Sequential(layer))


@pytest.mark.bad_input
def test_a_layout_that_does_not_exist_is_refused():
    weight = nn.Parameter(torch.empty(4, 3, 5))
    weight.orthogonal_layout = "conv"
    message = "`orthogonal_layout` of .* must be one of 'convolution', 'transposed convolution'"
    with pytest.raises(ValueError, match=message):
        orthogonal_(weight)


@pytest.mark.bad_input
def test_a_mark_that_cannot_be_is_refused_and_not_made():
    layer = nn.Linear(3, 4)
    with pytest.raises(ValueError, match="itself: got 'wieght'; it has weight, bias"):
        mark_orthogonal(layer, "wieght")
    with pytest.raises(ValueError, match="it has no parameters. Pass the submodule"):
        mark_orthogonal(nn.Sequential(layer), "0.weight")
    with pytest.raises(ShapeError, match="at least two dimensions"):
        mark_orthogonal(layer, "bias")
    with pytest.raises(ValueError, match="chose none.*mark_orthogonal"):
        split_parameters(layer)
    layer.orthogonal_names = ("kernel",)
    with pytest.raises(ValueError, match="must name parameters of that module: 'kernel'"):
        split_parameters(nn.Sequential(layer))
