"""The optimisers are called as those of torch are, by inspection of the signatures."""

import inspect

import pytest
import torch

from skewflow.optim import AngleSGD, CombinedOptimizer, FlowAdam, FlowSGD, NaturalSGD

EVERY = (AngleSGD, CombinedOptimizer, FlowAdam, FlowSGD, NaturalSGD)
METHODS = [
    name
    for name, method in inspect.getmembers(torch.optim.Optimizer, inspect.isfunction)
    if not name.startswith("_")
]
PEERS = [(FlowSGD, torch.optim.SGD), (FlowAdam, torch.optim.Adam)]


def parameters(function):
    return inspect.signature(function).parameters


@pytest.mark.parametrize("ours, theirs", [*PEERS, (AngleSGD, torch.optim.SGD)])
def test_what_stands_without_its_name_stands_where_torch_has_it(ours, theirs):
    """All else needs its name, so no order of arguments is promised that torch does not have."""
    by_place = [n for n, p in parameters(ours).items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert by_place == list(parameters(theirs))[: len(by_place)]
    kinds = {p.kind for p in parameters(ours).values()}
    assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("ours, theirs", PEERS)
def test_options_that_torch_has_too_have_its_defaults(ours, theirs):
    shared = parameters(ours).keys() & parameters(theirs).keys() - {"params", "lr"}
    assert {"weight_decay", "maximize", "foreach"} < shared
    for name in shared:
        assert parameters(ours)[name].default == parameters(theirs)[name].default, name


@pytest.mark.parametrize("ours, theirs", PEERS)
def test_every_option_of_the_constructor_is_one_of_the_groups(ours, theirs):
    optimizer = ours([torch.nn.Parameter(torch.eye(4))], lr=0.1)
    assert set(optimizer.defaults) == set(parameters(ours)) - {"params"}
    added = {"params", "step", "state_version"}  # saved with the options
    assert set(optimizer.param_groups[0]) == {*optimizer.defaults, *added}


@pytest.mark.parametrize("ours", EVERY)
def test_every_method_of_torchs_optimisers_is_called_as_there(ours):
    """What a method takes beyond them needs its name, and has a default."""
    assert {"step", "zero_grad", "state_dict", "load_state_dict", "add_param_group"} < {*METHODS}
    for name in METHODS:
        here, there = (parameters(getattr(cls, name)) for cls in (ours, torch.optim.Optimizer))
        assert list(here)[: len(there)] == list(there), name
        for each in there:
            assert here[each].kind == there[each].kind, (name, each)
        for more in [*here.values()][len(there) :]:
            assert more.kind is more.KEYWORD_ONLY and more.default is not more.empty, (name, more)


@pytest.mark.parametrize("ours", EVERY)
def test_no_public_property_raises(ours):
    p = torch.nn.Parameter(torch.eye(4))
    optimizer = FlowSGD([p], lr=0.1) if ours is CombinedOptimizer else ours([p], lr=0.1)
    optimizer = ours([optimizer]) if ours is CombinedOptimizer else optimizer
    properties = [
        name
        for name, value in inspect.getmembers(ours)
        if isinstance(value, property) and not name.startswith("_")
    ]
    for name in properties:
        getattr(optimizer, name)
