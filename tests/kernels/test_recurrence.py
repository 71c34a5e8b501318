"""The recurrence by hand and on CUDA against the plain loop."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from helpers import assert_close, randn, random_stiefel
from skewflow.errors import ShapeError
from skewflow.kernels.recurrence import by_hand, recurrence
from skewflow.kernels.recurrence.by_hand import LARGEST_WIDTH, recurrence_by_hand

SHAPES = [(1, 1, 1), (5, 2, 3), (3, 2, 16), (4, 3, 33), (2, 1, 65)]
EVERY = pytest.mark.parametrize("shape", SHAPES, ids=str)
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
BOTH = pytest.mark.parametrize("modrelu", [True, False], ids=["modrelu", "tanh"])


def arguments(shape, modrelu, generator, dtype=torch.float64, device="cpu"):
    l, b, d = shape
    bias = 0.3 * randn(d, generator=generator) if modrelu else None
    tensors = (
        randn(l, b, d, generator=generator),
        randn(b, d, generator=generator),
        random_stiefel(d, generator=generator),
        bias,
    )
    return [x if x is None else x.to(device, dtype).requires_grad_() for x in tensors]


def assert_same(f, given, generator, dtype, factor=1.0):
    """States and all gradients are those of the reference."""
    expected, actual = recurrence(*given), f(*given)
    up = randn(*expected.shape, generator=generator).to(expected)
    inputs = [x for x in given if x is not None]
    assert_close("states", expected, actual, dtype, factor=factor)
    for name, a, b in zip(
        ("u", "h_0", "W", "bias"),
        torch.autograd.grad(expected, inputs, up),
        torch.autograd.grad(actual, inputs, up),
        strict=False,
    ):
        assert_close(name, a, b, dtype, factor=factor)


@pytest.fixture
def kernel(monkeypatch):
    """The CUDA kernels, interpreted where there is no GPU; gives the device."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        return "cuda"
    monkeypatch.setattr(by_hand, "_has_kernel", lambda u: True)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return "cpu"


@EVERY
@BOTH
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_by_hand_it_is_the_plain_loop(shape, modrelu, dtype, generator):
    given = arguments(shape, modrelu, generator, dtype)
    assert_same(recurrence_by_hand, given, generator, dtype)


@EVERY
@BOTH
def test_on_cuda_it_is_the_plain_loop(shape, modrelu, generator, kernel):
    given = arguments(shape, modrelu, generator, torch.float32, kernel)
    assert_same(recurrence_by_hand, given, generator, torch.float32)


@GPU
@pytest.mark.parametrize("d", [170, 190, LARGEST_WIDTH, LARGEST_WIDTH + 1])
def test_long_sequences_on_a_gpu_stay_with_the_plain_loop(d, generator):
    given = arguments((300, 130, d), False, generator, torch.float32, "cuda")
    # Sums of d terms in another order, carried along 300 steps.
    assert_same(recurrence_by_hand, given, generator, torch.float32, factor=100)
    # modReLU jumps where its bias is positive, and its slope does everywhere: states below zero.
    u, h_0, W, bias = arguments((300, 130, d), True, generator, torch.float32, "cuda")
    given = u, h_0, W, -bias.abs()
    expected, actual = recurrence(*given), recurrence_by_hand(*given)
    assert_close("states", expected, actual, torch.float32, factor=100)


@GPU
def test_a_gpu_gives_the_same_bits_again(generator):
    given = arguments((200, 140, 190), True, generator, torch.float32, "cuda")
    first, *others = [recurrence_by_hand(*given) for _ in range(5)]
    assert all(torch.equal(first, other) for other in others)


def test_with_tanh_it_is_torchs_own_net(generator):
    u, h_0, W, _ = arguments((6, 2, 4), False, generator)
    net = nn.RNN(4, 4, dtype=torch.float64)
    with torch.no_grad():
        net.weight_ih_l0.copy_(torch.eye(4))
        net.weight_hh_l0.copy_(W)
        net.bias_ih_l0.zero_()
        net.bias_hh_l0.zero_()
    assert_close("states", net(u, h_0[None])[0], recurrence(u, h_0, W))


@BOTH
def test_its_gradients_are_right_once_and_twice(modrelu, generator):
    given = arguments((3, 2, 3), modrelu, generator)
    assert torch.autograd.gradcheck(recurrence_by_hand, given)
    assert torch.autograd.gradgradcheck(recurrence_by_hand, given)


def test_a_gradient_is_differentiated_where_some_inputs_are_constant(generator):
    u, h_0, W, bias = arguments((3, 2, 3), True, generator)
    constant = [u.detach(), h_0.detach(), W, bias.detach()]
    (G,) = torch.autograd.grad(recurrence_by_hand(*constant).sum(), W, create_graph=True)
    (expected,) = torch.autograd.grad(recurrence(*constant).sum(), W, create_graph=True)
    assert_close("first", expected, G)
    second = [torch.autograd.grad(g.square().sum(), W)[0] for g in (expected, G)]
    assert_close("second", *second)


def test_zero_stays_zero_and_nan_is_seen(generator, kernel):
    u = torch.zeros(2, 2, 3, device=kernel)
    u[0, 1, 1] = torch.nan
    h_0, W, bias = u.new_zeros(2, 3), torch.eye(3, device=kernel), u.new_ones(3)
    states = recurrence_by_hand(u, h_0, W, bias).cpu()
    assert not states[:, 0].any()  # a positive bias finds no sign to take
    assert states[:, 1, 1].isnan().all()


def test_strided_inputs_are_read_as_they_are(generator):
    u, h_0, W, bias = arguments((4, 5, 6), True, generator)
    strided = [u.mT.contiguous().mT, h_0.mT.contiguous().mT, W.mT.contiguous().mT, bias]
    assert_close("states", recurrence(u, h_0, W, bias), recurrence_by_hand(*strided))
    assert_close("u", u, strided[0])


@pytest.mark.bad_input
@pytest.mark.parametrize("u", [(2, 3), (0, 2, 3), (4, 2, 5), (4, 1, 3)])
def test_shapes_that_do_not_fit_are_refused(u):
    with pytest.raises(ShapeError, match=r"\(l, b, d\), \(b, d\).*got .*\(2, 3\), \(3, 3\)"):
        recurrence(torch.zeros(u), torch.zeros(2, 3), torch.eye(3))
