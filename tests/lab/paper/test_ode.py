"""Equations on O(d) in nets: what they read, how long gradients are, and what is said of them."""

from dataclasses import replace
from typing import get_args

import pytest
import torch

from helpers import randn
from skewflow_lab.paper.ode.experiment import Ode, _memory
from skewflow_lab.paper.ode.models import (
    ORTHOGONAL,
    Method,
    PlainODE,
    Reader,
    ResidualNet,
    gradient_norms,
    make_flow,
)
from skewflow_lab.paper.ode.training import Data, Training, seeded
from skewflow_lab.runs.files import RunError

CI = Ode.presets["ci"]
METHODS = pytest.mark.parametrize("method", get_args(Method))


def test_the_plain_equation_is_solved_to_second_order(generator):
    plain, x = PlainODE(3, 1, 2.0), randn(5, 3, generator=generator).float()
    torch.nn.init.normal_(plain.drift, generator=generator)
    ends = {}
    with torch.no_grad():
        for plain.num_steps in (10, 20, 640):
            ends[plain.num_steps] = plain.end(x)[0]
    first, second = ((ends[n] - ends[640]).norm() for n in (10, 20))
    assert 3 < first / second < 5


@METHODS
def test_images_come_as_one_vector_or_pixel_by_pixel(method):
    images, pixels = (Data(task, "digits", 4) for task in ("images", "pixels"))
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    (x, y), (u, v) = (
        data.batch(5, g) for data, g in zip((images, pixels), generators, strict=True)
    )
    assert x.shape == (1, 5, 4) and u.shape == (4, 5, 1)
    assert torch.equal(x[0].T, u[..., 0]) and torch.equal(y, v)
    torch.manual_seed(0)
    net = Reader(method, 1, 3, num_steps=1, time=0.5, classes=10, driven=True)
    changed = u.clone()
    changed[0, 2] += 1  # the first pixel of the third image
    found = []
    for sequence in (changed, u):
        with seeded(0, "planes"):
            found.append(net(sequence))
    differ = (found[0] != found[1]).any(1)
    assert differ.tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("method", ["exact", "strang"])
def test_the_weight_flows_on_along_a_sequence(method):
    torch.manual_seed(0)
    net = Reader(method, 1, 4, num_steps=1, time=0.5, classes=2, driven=True)
    with torch.no_grad():
        net.flow.generator.V.normal_()
        moved = [(net.end(torch.zeros(n, 1, 1))[1] - net.flow.weight).norm() for n in (1, 2, 4)]
    assert 0.01 < moved[0] < moved[1] < moved[2]


def test_the_gradient_of_a_step_of_a_residual_net_has_the_length_of_its_matrix():
    net = ResidualNet(2, 3)
    for block in net.blocks:
        torch.nn.init.zeros_(block.bias)
        with torch.no_grad():
            block.weight.copy_(torch.eye(2))
    norms = gradient_norms(net, torch.zeros(4, 2), (1, 2, 3), seed=0)
    assert norms == pytest.approx([2, 4, 8])  # each block is x + tanh(x), at 0


@pytest.mark.parametrize("method", ORTHOGONAL)
def test_gradients_keep_to_the_bound_of_the_equation(method):
    torch.manual_seed(0)
    flow = make_flow(method, 8, 200, 3.0)
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    for depth, norm in zip((50, 200), gradient_norms(flow, x, (50, 200), seed=0), strict=True):
        bound = torch.tensor(3.0 * depth / 200).exp()
        assert 1 / bound < norm < bound


@METHODS
def test_a_training_lowers_the_loss_and_w_stays_orthogonal(method):
    data = Data("images", "digits", 2)
    sizes = {"hidden": 8, "num_steps": 4, "time": 2.0, "batch": 64, "iterations": 100}
    training = Training(data, method, lr=1e-2, seed=0, **sizes)
    losses = [training.run(10) for _ in range(10)]
    assert losses[-1] < 0.7 * losses[0]
    assert training.accuracy() > 0.4
    error = training.error()
    assert (error is None) == (method not in ORTHOGONAL)
    assert error is None or error < 1e-6


@pytest.mark.parametrize("method", ORTHOGONAL)
def test_memory_of_the_adjoint_does_not_grow(method):
    found = _memory(replace(CI, memory_steps=(5, 15)), method)
    assert found["adjoint"][0] == found["adjoint"][1]
    assert found["autograd"][1] > 2 * found["autograd"][0]


def test_the_verdict_follows_the_numbers():
    def row(mean, norms, error=None):
        return {"accuracy": {"mean": mean, "sd": 0.5}, "norms": norms, "error": error}

    results = {
        "data": "MNIST",
        "depths": [1, 30],
        "memory_steps": [10, 1000],
        "tasks": {
            "images": {
                "exact": row(91.0, [1.0, 4.0], 2e-7),
                "plain": row(90.0, [1.0, 0.5]),
            },
            "pixels": {"exact": row(60.0, [], 3e-7), "plain": row(40.0, [])},
        },
        "depth": {"exact": [1.0, 7.0], "plain": [1.0, 0.01]},
        "memory": {"exact": {"adjoint": [500, 500], "autograd": [600, 50_000]}},
    }
    text = Ode().verdict(results)
    assert "whole images: OrthogonalODE, exact 91.00% ± 0.50, neural ODE, free" in text
    assert "pixel by pixel: OrthogonalODE, exact 60.00%" in text
    assert "start of 30 untrained steps" in text and "exact 7, neural ODE, free weight 0.01" in text
    assert "OrthogonalODE, exact is nearest to 1" in text.split("untrained")[1].split(".")[1]
    assert "neural ODE, free weight 0.5; neural ODE, free weight is nearest to 1" in text
    assert "orthogonal to 3e-07" in text
    assert "needs the same memory at 10 and 1,000 steps" in text and "100 times as much" in text
    results["memory"]["exact"]["adjoint"] = [500, 600]
    assert "needs different memory" in Ode().verdict(results)


@pytest.mark.bad_input
def test_what_does_not_fit_is_refused():
    for change, said in (
        ({"hidden": 1}, "`hidden` must be at least 2, so that W can turn: got 1"),
        ({"num_steps": 0}, "`num_steps` must be at least 1: got 0"),
        ({"rates": ()}, r"`rates` must be positive, at least one: got \(\)"),
        ({"time": -1.0}, "`time` must be positive"),
        ({"methods": ()}, "`methods` must hold at least one value"),
    ):
        with pytest.raises(RunError, match=said):
            Ode().cells(replace(CI, **change))
    with pytest.raises(RunError, match="`pool` must divide the side of the images, 8: got 3"):
        Data("images", "digits", 3)
