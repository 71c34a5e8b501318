import pytest
import torch
from torch import nn

from helpers import assert_close, fitted_slope, randn
from skewflow.errors import BlockSizeError, DtypeError, ShapeError
from skewflow.flows import Field, integrate_adaptive
from skewflow.nn import OrthogonalODE

D = torch.float64
METHODS = ["exact", "stochastic", "strang"]
EVERY = pytest.mark.parametrize("method", METHODS)


def lively(d, num_steps, generator, *, dtype=D, **options):
    """A layer whose weight moves far, at which nothing is zero."""
    layer = OrthogonalODE(d, num_steps, dtype=dtype, **options)
    with torch.no_grad():
        for p in (layer.bias, layer.generator.U, layer.generator.V):
            p.copy_(0.7 * randn(*p.shape, generator=generator))
    return layer


def gradients(layer, x, gradient, seed=0):
    layer.gradient = gradient
    torch.manual_seed(seed)
    end, W = layer.end(x)
    loss = end.square().sum() + (W * torch.arange(W.numel()).view_as(W)).sum().sin()
    return end, torch.autograd.grad(loss, [x, *layer.parameters()])


@EVERY
@pytest.mark.parametrize("d, num_steps", [(2, 1), (5, 40), (6, 40)])
def test_the_adjoint_gives_the_gradients_of_the_steps(method, d, num_steps, generator):
    layer = lively(d, num_steps, generator, method=method)
    x = randn(3, d, generator=generator).requires_grad_()
    end, expected = gradients(layer, x, "autograd")
    again, actual = gradients(layer, x, "adjoint")
    assert torch.equal(end, again)
    names = ["x", *dict(layer.named_parameters())]
    for name, a, b in zip(names, expected, actual, strict=True):
        assert a.abs().max() > 0, name
        assert_close(name, a, b, factor=1e4)  # 1e-8: the way back rounds anew


@EVERY
def test_a_thousand_steps_in_float32_leave_the_weight_orthogonal(method, generator):
    layer = lively(8, 1000, generator, dtype=torch.float32, method=method)
    _, W = layer.end(torch.zeros(1, 8))
    assert (W - layer.weight).norm() > 0.5
    assert (W.mT @ W - torch.eye(8)).norm() / 8**0.5 < 1e-6


@pytest.mark.parametrize("method", ["exact", "strang"])
def test_the_steps_converge_with_second_order(method, generator):
    layer = lively(4, 1, generator, method=method)
    x = randn(4, generator=generator)
    with torch.no_grad():
        ends = {}
        for n in (10, 20, 40, 320):
            layer.num_steps = n
            ends[n] = layer.end(x)
        for part in range(2):
            errors = [(ends[n][part] - ends[320][part]).norm().item() for n in (10, 20, 40)]
            assert 1.8 < fitted_slope([1 / 10, 1 / 20, 1 / 40], errors) < 2.3

        def omega(t, W):
            M = layer.generator(torch.tensor(t), W)
            return (M - M.mT) / 2

        W = integrate_adaptive(Field(omega, "right"), layer.weight, 1.0, tolerance=1e-9).last
    assert_close("W", W, ends[320][1], factor=1e8)  # what 320 steps of second order leave


@pytest.mark.parametrize("gradient", ["autograd", "adjoint"])
def test_a_flow_goes_on_where_another_call_ended(gradient, generator):
    half, whole = (lively(4, 50, generator, gradient=gradient) for _ in range(2))
    whole.load_state_dict(half.state_dict())
    for layer, time in ((half, 0.5), (whole, 1.0)):
        layer.time = time
        torch.nn.init.zeros_(layer.generator.U)  # the time of the second half starts at 0 again
    x = randn(4, generator=generator)
    found = []
    for run in (lambda: half.end(*half.end(x)), lambda: whole.end(x)):
        end, W = run()
        layer = half if not found else whole
        loss = end.sum() + W[0].sum()
        found.append([end, W, *torch.autograd.grad(loss, [layer.weight, layer.generator.V])])
    for a, b in zip(*found, strict=True):
        assert (a - b).abs().max() < 1e-2 * b.abs().max()  # what steps of second order leave
    assert (half.end(x)[0] - found[0][0]).norm() > 0.1


def test_the_random_steps_tend_to_the_exact_ones(generator):
    layer = lively(4, 1, generator)
    layer.num_steps = 100
    exact = layer.end(torch.zeros(4))[1].detach()
    layer.method, errors = "stochastic", []
    with torch.no_grad():
        for layer.num_steps in (10, 160):
            torch.manual_seed(0)
            draws = [layer.end(torch.zeros(4))[1] for _ in range(4)]
            assert not torch.equal(draws[0], draws[1])  # each call draws anew
            errors.append(sum((W - exact).square().sum() for W in draws).sqrt())
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize("more", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_steps(more):
    memory = pytest.importorskip("skewflow_lab.measure.memory")
    layer, x = OrthogonalODE(16), torch.randn(32, 16, requires_grad=True)

    def peak(gradient, num_steps):
        layer.gradient, layer.num_steps = gradient, num_steps
        return memory.peak_bytes(
            lambda: torch.autograd.grad(layer(x).sum(), [x, *layer.parameters()])
        )

    assert peak("adjoint", more) == peak("adjoint", 10)
    assert peak("autograd", 30) > 2 * peak("autograd", 10)


def test_the_adjoint_is_differentiated_through_the_steps(generator):
    layer = lively(3, 4, generator)
    x = randn(3, generator=generator).requires_grad_()
    second = []
    for layer.gradient in ("autograd", "adjoint"):
        (g,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        second.append(torch.autograd.grad(g.square().sum(), [x, layer.weight, layer.bias]))
    for a, b in zip(*second, strict=True):
        assert_close("second", a, b)


@EVERY
def test_a_batch_of_gradients_is_pulled_back_at_once(method, generator):
    layer, x = lively(4, 5, generator, method=method), randn(4, generator=generator)
    found = []
    for vectorize in (False, True):
        torch.manual_seed(0)  # the stochastic flow draws the same planes
        x.requires_grad_()
        y = layer(x)
        ups = torch.eye(4, dtype=D)
        if vectorize:
            found.append(torch.autograd.grad(y, [x, layer.weight], ups, is_grads_batched=True))
        else:
            rows = [torch.autograd.grad(y, [x, layer.weight], up, retain_graph=True) for up in ups]
            found.append([torch.stack(part) for part in zip(*rows, strict=True)])
    for a, b in zip(*found, strict=True):
        assert_close("batched", a, b)


def test_a_generator_of_ones_own_is_trained_but_what_it_freezes_is_not(generator):
    class Turn(nn.Module):
        def __init__(self):
            super().__init__()
            self.A = nn.Parameter(randn(3, 3, generator=generator))
            self.fixed = nn.Parameter(randn(3, 3, generator=generator), requires_grad=False)

        def forward(self, t, W):
            return self.A + t * self.fixed

    layer = OrthogonalODE(3, 5, generator=Turn(), dtype=D)
    layer(randn(2, 3, generator=generator)).sum().backward()
    assert layer.generator.A.grad.any() and layer.generator.fixed.grad is None


@pytest.mark.parametrize("name", ["bias", "generator.U", "generator.V"])
def test_the_adjoint_notices_a_parameter_changed_before_the_backward_pass(name, generator):
    layer = lively(3, 4, generator, gradient="adjoint")
    end = layer(randn(2, 3, generator=generator))
    with torch.no_grad():
        layer.get_parameter(name).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        end.sum().backward()


class Corner(nn.Module):
    """A generator of a wrong shape, which would broadcast."""

    def forward(self, t, W):
        return W[:1, :1]


@pytest.mark.bad_input
def test_what_does_not_fit_is_refused():
    with pytest.raises(BlockSizeError, match="at least d=2 rows: got d=1"):
        OrthogonalODE(1)
    with pytest.raises(ValueError, match="`num_steps` must be a whole number"):
        OrthogonalODE(3, 0)
    with pytest.raises(ValueError, match="`time` must be positive and finite: got -1"):
        OrthogonalODE(3, time=-1.0)
    with pytest.raises(ValueError, match="`method` must be one of 'exact', 'stochastic', 'strang'"):
        OrthogonalODE(3, method="euler")
    with pytest.raises(ValueError, match="`gradient` must be one of"):
        OrthogonalODE(3, gradient="none")
    with pytest.raises(ShapeError, match=r"`x` must have the shape \(\*batch, 3\): got \(2, 4\)"):
        OrthogonalODE(3)(torch.zeros(2, 4))
    with pytest.raises(TypeError, match="`generator` must be a torch.nn.Module: got function"):
        OrthogonalODE(3, generator=lambda t, W: W)
    with pytest.raises(ValueError, match="`activation` must have no parameters: got PReLU"):
        OrthogonalODE(3, activation=nn.PReLU())
    with pytest.raises(ShapeError, match=r"of the shape of W, \(3, 3\): got \(1, 1\)"):
        OrthogonalODE(3, generator=Corner())(torch.zeros(3))
    with pytest.raises(ShapeError, match=r"`W` must have the shape \(3, 3\): got \(2, 2\)"):
        OrthogonalODE(3).end(torch.zeros(3), torch.eye(2))
    with pytest.raises(DtypeError, match="`x` must be a real floating-point"):
        OrthogonalODE(3)(torch.zeros(3, dtype=torch.int64))
