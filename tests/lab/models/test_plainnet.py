"""The network of the paper's CIFAR-10 runs."""

import pytest
import torch

from skewflow.nn import orthogonal_parameters
from skewflow_lab.bench.step.weights import plainnet110
from skewflow_lab.models.plainnet import PlainNet


def test_plainnet110_has_the_weights_that_the_step_benchmark_steps():
    shapes = [tuple(p.shape) for _, p in orthogonal_parameters(PlainNet())]
    assert shapes == plainnet110()


def test_each_stage_halves_the_image():
    sizes = []
    net = PlainNet(depth=11, width=4)
    for layer in net.features:
        layer.register_forward_hook(lambda module, args, out: sizes.append(out.shape[-1]))
    net(torch.zeros(1, 3, 32, 32))
    assert sizes == [32] * 4 + [16] * 3 + [8] * 3


@pytest.mark.parametrize("depth", [2, 4, 109])
def test_a_depth_that_does_not_fit_is_refused(depth):
    with pytest.raises(ValueError, match=f"3 n \\+ 2 .* got {depth}"):
        PlainNet(depth=depth)


def test_a_shift_keeps_the_gradients_of_a_deep_net_of_one_size(generator):
    x, y = torch.randn(32, 3, 16, 16, generator=generator), torch.arange(32) % 10
    ratios = []
    for shift in (0.0, 1.25):
        torch.manual_seed(0)
        net = PlainNet(width=4, shift=shift)
        torch.nn.functional.cross_entropy(net(x), y).backward()
        first, last = (layer.conv.weight.grad.norm() for layer in net.features[::108])
        ratios.append(first / last)
    assert ratios[0] > 1e4 and 0.03 < ratios[1] < 30
