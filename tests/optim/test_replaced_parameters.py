"""Parameters that a trainer puts in the place of those of an optimiser."""

import copy

import pytest
import torch
from torch import nn

from helpers import randn
from skewflow.errors import NotOnManifoldError
from skewflow.nn import orthogonal_
from skewflow.optim import AngleSGD, FlowAdam, FlowSGD


def made(cls, generator, **options):
    params = [nn.Parameter(orthogonal_(torch.empty(8, 5), generator=generator)) for _ in range(2)]
    return params, cls([("a", params[0]), ("b", params[1])], lr=0.01, **options)


def step(optimizer, params, generator):
    for p in params:
        p.grad = randn(*p.shape, generator=generator).to(p.dtype)
    optimizer.step()


@pytest.mark.parametrize("cls", [FlowSGD, FlowAdam, AngleSGD])
@pytest.mark.parametrize("steps", [0, 3], ids=["at the start", "on the way"])
@pytest.mark.parametrize("then", ["step", "save", "load"])
def test_the_run_goes_on_with_the_new_parameters(cls, steps, then, generator):
    params, optimizer = made(cls, generator, block_size=2)
    for _ in range(steps):
        step(optimizer, params, generator)
    unbroken = copy.deepcopy((params, optimizer))
    new = [nn.Parameter(p.detach().clone()) for p in params]
    optimizer.param_groups[0]["params"] = new
    if then == "save":
        assert len(optimizer.state_dict()["state"]) == 2
    if then == "load":
        optimizer.load_state_dict(unbroken[1].state_dict())
    seed = generator.get_state()
    for _ in range(3):
        step(optimizer, new, generator)
    generator.set_state(seed)
    for _ in range(3):
        step(unbroken[1], unbroken[0], generator)
    assert all(torch.equal(p, q) for p, q in zip(new, unbroken[0], strict=True))
    assert not torch.equal(params[0], new[0])
    assert set(map(id, optimizer.state)) == set(map(id, new))
    assert set(optimizer.report().reasons) == {"a", "b"}


@pytest.mark.bad_input
def test_new_parameters_are_checked(generator):
    params, optimizer = made(FlowSGD, generator)
    for new, error, words in (
        (2 * params[1].detach(), NotOnManifoldError, "b of shape"),
        (params[1].detach().mT.clone(), ValueError, "must have been given to the optimiser"),
    ):
        optimizer.param_groups[0]["params"] = [params[0], nn.Parameter(new)]
        params[0].grad = torch.ones(8, 5)
        with pytest.raises(error, match=words):
            optimizer.step()
    optimizer.param_groups[0]["params"] = params[::-1]  # known ones, but in another order
    optimizer.step()
