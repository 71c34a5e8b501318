import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from helpers import assert_close, randn
from skewflow.errors import ShapeError
from skewflow.nn import ModReLU, OrthogonalRNN, OrthogonalRNNCell

D = torch.float64


def twin(ours, batch_first):
    """torch's own RNN with the same weights."""
    theirs = nn.RNN(3, 8, batch_first=batch_first, dtype=D)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(ours.cell.input.weight)
        theirs.weight_hh_l0.copy_(ours.cell.weight_hh)
        theirs.bias_ih_l0.copy_(ours.cell.input.bias)
        theirs.bias_hh_l0.zero_()
    return theirs


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("shape, h_shape", [((4, 5, 3), (1, None, 8)), ((4, 3), (1, 8))])
@pytest.mark.parametrize("start", [False, True])
def test_with_tanh_it_is_torchs_own_net_with_its_layout(
    batch_first, shape, h_shape, start, generator
):
    ours = OrthogonalRNN(3, 8, "tanh", batch_first, dtype=D)
    x = randn(*shape, generator=generator)
    batch = shape[0] if batch_first else shape[1]
    h_0 = randn(*(n or batch for n in h_shape), generator=generator) if start else None
    expected, actual = twin(ours, batch_first)(x, h_0), ours(x, h_0)
    assert_close("outputs", expected[0], actual[0])
    assert_close("h_n", expected[1], actual[1])


def test_the_net_is_the_cell_along_the_sequence_and_can_go_on(generator):
    rnn = OrthogonalRNN(3, 8, dtype=D)
    nn.init.constant_(rnn.cell.activation.bias, -0.1)
    x = randn(6, 5, 3, generator=generator)
    outputs, h_n = rnn(x)
    h = None
    for t in range(6):
        h = rnn.cell(x[t], h)
        assert_close("output", h, outputs[t])
    assert_close("h_n", h[None], h_n)
    first, middle = rnn(x[:2])
    second, last = rnn(x[2:], middle)
    assert_close("in two parts", outputs, torch.cat([first, second]))
    assert_close("last", h_n, last)


def test_several_transitions_are_mapped_over(generator):
    rnn = OrthogonalRNN(3, 8, dtype=D)
    x = randn(6, 5, 3, generator=generator)
    weights = torch.stack([rnn.cell.weight_hh.detach(), torch.eye(8, dtype=D)])

    def run(W):
        return torch.func.functional_call(rnn, {"cell.weight_hh": W}, (x,))[0]

    for W, outputs in zip(weights, torch.vmap(run)(weights), strict=True):
        assert_close("outputs", run(W), outputs)


def test_an_activation_of_ones_own_is_applied(generator):
    rnn = OrthogonalRNN(3, 8, dtype=D)
    rnn.cell.activation = nn.Softsign()
    x = randn(2, 5, 3, generator=generator)
    first = nn.functional.softsign(rnn.cell.input(x[0]))
    assert_close("first", first, rnn(x)[0][0])


@pytest.mark.parametrize("nonlinearity", ["modrelu", "tanh"])
@pytest.mark.parametrize(
    "register",
    [
        lambda module, seen: module.register_forward_hook(lambda *_: seen.append(1)),
        lambda module, seen: module.register_forward_pre_hook(lambda *_: seen.append(1)),
        lambda module, seen: module.register_full_backward_hook(lambda *_: seen.append(1)),
        lambda module, seen: module.register_full_backward_pre_hook(lambda *_: seen.append(1)),
        lambda module, seen: nn.modules.module.register_module_forward_hook(
            lambda called, *_: seen.append(1) if called is module else None
        ),
    ],
    ids=["forward", "forward_pre", "backward", "backward_pre", "of all modules"],
)
def test_hooks_of_the_activation_are_called_at_every_step(nonlinearity, register, generator):
    rnn = OrthogonalRNN(3, 8, nonlinearity, dtype=D)
    x = randn(6, 5, 3, generator=generator)
    plain, seen = rnn(x)[0], []
    handle = register(rnn.cell.activation, seen)
    try:
        outputs = rnn(x)[0]
        outputs.sum().backward()
    finally:
        handle.remove()
    assert len(seen) == 6
    assert_close("outputs", plain, outputs)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # torch's own, at its first dual number
@pytest.mark.parametrize("nonlinearity", ["modrelu", "tanh"])
def test_forward_mode_gives_the_derivative_of_the_reverse_mode(nonlinearity, generator):
    rnn = OrthogonalRNN(3, 8, nonlinearity, dtype=D)
    x, dx = (randn(6, 5, 3, generator=generator) for _ in range(2))
    with forward_ad.dual_level():
        outputs = rnn(forward_ad.make_dual(x, dx))[0]
        tangent = forward_ad.unpack_dual(outputs).tangent
    expected = torch.autograd.functional.jvp(lambda x: rnn(x)[0], x, dx)[1]
    assert_close("tangent", expected, tangent)


def test_at_the_start_modrelu_keeps_lengths_over_a_thousand_steps(generator):
    rnn = OrthogonalRNN(1, 16, dtype=D)
    nn.init.zeros_(rnn.cell.input.bias)
    h_0 = randn(1, 2, 16, generator=generator).requires_grad_()
    _, h_n = rnn(torch.zeros(1000, 2, 1, dtype=D), h_0)
    assert_close("length", h_0.norm(dim=-1), h_n.norm(dim=-1))
    up = randn(1, 2, 16, generator=generator)
    (down,) = torch.autograd.grad(h_n, h_0, up)
    assert_close("gradient", up.norm(dim=-1), down.norm(dim=-1))


def test_modrelu_keeps_signs_and_shrinks_by_its_bias(generator):
    f = ModReLU(4, dtype=D)
    z = randn(50, 4, generator=generator)
    assert_close("identity", z, f(z))
    nn.init.constant_(f.bias, -0.5)
    assert_close("soft threshold", nn.functional.softshrink(z, 0.5), f(z))
    assert torch.autograd.gradcheck(f, z.requires_grad_())


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "x, h_0, message",
    [
        ((4, 5, 2), None, r"`x` must have the shape \(batch, length, 3\).*got \(4, 5, 2\)"),
        ((4, 0, 3), None, r"length of at least one: got \(4, 0, 3\)"),
        ((3,), None, r"got \(3,\)"),
        ((4, 5, 3), (1, 5, 8), r"`h_0` must have the shape \(1, 4, 8\): got \(1, 5, 8\).*Omit"),
        ((4, 3), (8,), r"must have the shape \(1, 8\): got \(8,\)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(x, h_0, message):
    rnn = OrthogonalRNN(3, 8, batch_first=True)
    with pytest.raises(ShapeError, match=message):
        rnn(torch.zeros(x), None if h_0 is None else torch.zeros(h_0))


@pytest.mark.bad_input
def test_the_cell_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="'modrelu' or 'tanh': got 'relu'.*`activation`"):
        OrthogonalRNNCell(3, 8, "relu")
    cell = OrthogonalRNNCell(3, 8)
    with pytest.raises(ShapeError, match=r"`x` must have the shape \(\*batch, 3\): got \(5, 4\)"):
        cell(torch.zeros(5, 4))
    with pytest.raises(ShapeError, match=r"`h` must have the shape \(5, 8\): got \(8,\)"):
        cell(torch.zeros(5, 3), torch.zeros(8))


@pytest.mark.filterwarnings("ignore")  # torch's tracer is deprecated, and warns of shapes
def test_the_net_can_be_traced(generator):
    net = OrthogonalRNN(3, 6)
    x = randn(5, 2, 3, generator=generator, dtype=torch.float32)
    traced = torch.jit.trace(net, (x,))
    for ours, theirs in zip(traced(x), net(x), strict=True):
        assert_close("traced", theirs.detach(), ours.detach(), torch.float32)
