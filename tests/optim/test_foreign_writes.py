"""Weights that something else writes to between steps: projected, or refused, never spoilt."""

import copy

import pytest
import torch
from torch import nn

from helpers import EPS, randn
from skewflow.errors import NotOnManifoldError, ShapeError
from skewflow.geometry import haar, orthogonality_error
from skewflow.geometry.matrices import as_matrices
from skewflow.nn import orthogonal_
from skewflow.optim import FlowAdam, FlowSGD
from skewflow.samplers import HRegular

FAR = r"must stay orthogonal, and something other than its optimiser has written to it"
NEAR = "ignore:.*was written by something other than its optimiser:UserWarning"

WRITES = {
    "no_grad copy_": lambda p, new: p.detach().copy_(new),
    "data.copy_": lambda p, new: p.data.copy_(new),
    "data =": lambda p, new: setattr(p, "data", new.clone()),
}


def weight(shape, generator, dtype=torch.float32):
    return nn.Parameter(orthogonal_(torch.empty(shape, dtype=dtype), generator=generator))


def error(p):
    X = as_matrices(p.detach().double())
    return float(orthogonality_error(X).max() / X.shape[-1] ** 0.5)


def step(optimizer, generator):
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = randn(*p.shape, generator=generator).to(p.dtype)
    optimizer.step()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("block_size", [2, 8, "dense"])
@pytest.mark.parametrize("make", [FlowSGD, FlowAdam])
def test_a_weight_written_far_from_the_manifold_is_refused(make, block_size, write, generator):
    first, p = weight((16, 16), generator), weight((24, 16), generator)
    optimizer = make([("first", first), ("p", p)], lr=1e-3, block_size=block_size)
    step(optimizer, generator)
    write(p, nn.init.kaiming_uniform_(torch.empty(24, 16), generator=generator))
    before, state = first.detach().clone(), copy.deepcopy(optimizer.state_dict())
    written = p.detach().clone()
    with pytest.raises(NotOnManifoldError, match=f"^p of shape .*{FAR}.*project.*orthogonal_"):
        step(optimizer, generator)
    assert torch.equal(first, before) and torch.equal(p, written)  # nothing has moved
    for key, value in state["state"][0].items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(optimizer.state[first][key]))


def test_a_model_loaded_after_the_optimiser_was_made_is_checked(generator):
    model = nn.Linear(16, 16, bias=False)
    orthogonal_(model.weight, generator=generator)
    optimizer = FlowSGD(model.named_parameters(), lr=1e-3, block_size=2)
    model.load_state_dict(nn.Linear(16, 16, bias=False).state_dict())
    with pytest.raises(NotOnManifoldError, match=f"^weight of shape .*{FAR}"):
        step(optimizer, generator)
    orthogonal_(model.weight, generator=generator)
    step(optimizer, generator)
    assert error(model.weight) < EPS[torch.float32]


@pytest.mark.filterwarnings(NEAR)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("shape", [(16, 8), (8, 16), (2, 9, 5), (8, 4, 3, 3)], ids=str)
def test_a_weight_written_near_the_manifold_is_projected(shape, write, generator):
    p = weight(shape, generator)
    optimizer = FlowSGD([p], lr=1e-3, block_size=2)
    step(optimizer, generator)
    write(p, weight(shape, generator).detach().bfloat16().float())
    assert error(p) > 1e-4
    step(optimizer, generator)
    assert error(p) < EPS[torch.float32]


def test_a_weight_written_near_the_manifold_is_reported(generator):
    p = weight((8, 8), generator)
    optimizer = FlowSGD([("turn", p)], lr=1e-3, block_size=2)
    with torch.no_grad():
        p *= 1.02
    with pytest.warns(UserWarning, match="turn was written by something other than its optimiser"):
        step(optimizer, generator)


@pytest.mark.filterwarnings(NEAR)
@pytest.mark.parametrize("block_size", [2, 8, "dense"])
def test_a_weight_that_adamw_owns_too_stays_orthogonal(block_size, generator):
    p = weight((32, 32), generator)
    ours, theirs = FlowSGD([p], lr=1e-3, block_size=block_size), torch.optim.AdamW([p], lr=1e-3)
    for _ in range(100):
        theirs.step()
        step(ours, generator)
    assert error(p) < EPS[torch.float32]


def test_a_weight_without_a_gradient_is_checked_when_it_has_one(generator):
    p, q = weight((8, 8), generator), weight((8, 8), generator)
    optimizer = FlowSGD([p, q], lr=1e-3, block_size=2)
    with torch.no_grad():
        q.fill_(1.0)
    for _ in range(3):
        p.grad = randn(8, 8, generator=generator, dtype=torch.float32)
        optimizer.step()
    q.grad = p.grad
    with pytest.raises(NotOnManifoldError, match=f"parameter 1 of group 0.*{FAR}"):
        optimizer.step()


@pytest.mark.parametrize("block_size", [2, "dense"])
@pytest.mark.parametrize("value", [0.5, float("nan")])
def test_the_guard_raises_where_a_write_was_not_noticed(block_size, value, generator):
    p = weight((16, 16), generator)
    optimizer = FlowSGD([p], lr=0.0, block_size=block_size, check_every=4)
    with torch.no_grad():
        p.fill_(value)
    optimizer._writes.note()  # as if nobody could have seen it
    with pytest.raises(NotOnManifoldError, match=FAR):
        for _ in range(8):
            step(optimizer, generator)


@pytest.mark.parametrize("value", [float("nan"), 40.0])
@pytest.mark.parametrize("shape", [(16, 16), (16, 6)])
@pytest.mark.parametrize("make", [FlowSGD, FlowAdam])
def test_exact_steps_that_overflow_name_the_weight_that_was_written(make, shape, value, generator):
    p = weight(shape, generator)
    optimizer = make([("turn", p)], lr=1e-3, block_size="dense")
    step(optimizer, generator)
    p.data[5, 5] = value  # neither the version nor the first and last entries show it
    with pytest.raises(NotOnManifoldError, match=f"^turn of shape .*{FAR}"):
        for _ in range(300):
            step(optimizer, generator)


@pytest.mark.parametrize(
    "value, options",
    [(1e38, {}), (float("nan"), {"block_size": 2, "sampler": HRegular(2)})],
    ids=["powers overflow", "a sampler reads NaN"],
)
def test_errors_on_the_way_name_the_weight_that_was_written(value, options, generator):
    p = weight((16, 16), generator, torch.float64)
    optimizer = FlowSGD([("turn", p)], lr=1e-3, check_every=0, **options)
    step(optimizer, generator)
    p.data[5, 5] = value
    with pytest.raises(NotOnManifoldError, match=f"^turn of shape .*{FAR}"):
        for _ in range(3):
            step(optimizer, generator)


def test_a_weight_whose_memory_was_freed_is_refused(generator):
    p = weight((8, 8), generator)
    optimizer = FlowSGD([("turn", p)], lr=1e-3, block_size=2)
    step(optimizer, generator)
    p.untyped_storage().resize_(0)
    with pytest.raises(ShapeError, match="turn of shape .* must keep its memory: it was freed"):
        step(optimizer, generator)


def test_factored_steps_check_their_weight(generator):
    p = weight((16, 16), generator)
    optimizer = FlowSGD([p], lr=1e-3, block_size="dense")
    with torch.no_grad():
        p.fill_(1.0)
    factors = {p: (torch.ones(16, 1), torch.ones(16, 1))}
    with pytest.raises(NotOnManifoldError, match=FAR):
        optimizer.step(factors=factors)


HALF_WRITES = {**WRITES, "data.mul_(-1)": lambda p, _: p.data.mul_(-1)}


@pytest.mark.parametrize("write", HALF_WRITES.values(), ids=HALF_WRITES)
@pytest.mark.parametrize("loaded", [False, True])
def test_what_is_written_to_a_half_weight_is_kept(write, loaded, generator):
    p = weight((8, 8), generator, torch.bfloat16)
    optimizer = FlowSGD([p], lr=0.0, block_size=2)
    step(optimizer, generator)
    if loaded:
        optimizer.load_state_dict(optimizer.state_dict())
    write(p, haar(8, generator=generator).bfloat16())
    written = p.detach().clone()
    step(optimizer, generator)
    assert (p.detach() - written).abs().max() < 1e-2


def test_a_half_weight_written_far_from_the_manifold_is_refused(generator):
    p = weight((8, 8), generator, torch.bfloat16)
    optimizer = FlowSGD([p], lr=0.1, block_size=2)
    step(optimizer, generator)
    p.data.copy_(torch.randn(8, 8, generator=generator))
    with pytest.raises(NotOnManifoldError, match=FAR):
        step(optimizer, generator)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_weights_swapped_out_and_back_change_no_bit(dtype, generator):
    ends = []
    for swaps in (False, True):
        p = weight((8, 8), torch.Generator().manual_seed(0), dtype)
        optimizer = FlowSGD([p], lr=0.1, block_size=2, momentum=0.9)
        gradients = torch.Generator().manual_seed(1)
        for _ in range(3):
            step(optimizer, gradients)
            if swaps:
                kept = p.detach().clone()
                with torch.no_grad():
                    p.copy_(haar(8, generator=generator))
                    p.copy_(kept)
        ends.append(p.detach())
    assert torch.equal(*ends)


def test_a_half_model_that_is_cast_to_float64_keeps_its_digits(generator):
    model = nn.Linear(8, 8, bias=False, dtype=torch.bfloat16)
    orthogonal_(model.weight, generator=generator)
    optimizer = FlowSGD(model.parameters(), lr=1e-3, block_size=2, momentum=0.9)
    step(optimizer, generator)
    model.zero_grad()
    with pytest.warns(UserWarning, match="was written by something other"):
        model.double()
        step(optimizer, generator)
    assert "master" not in optimizer.state[model.weight]
    assert error(model.weight) < 1e-14


def test_a_float32_weight_cast_to_float64_before_the_optimiser_is_named(generator):
    model = nn.Linear(8, 8, bias=False)
    orthogonal_(model.weight, generator=generator)
    model.double()
    with pytest.raises(NotOnManifoldError, match=r"float32, as after `model\.double\(\)`"):
        FlowSGD(model.parameters(), lr=0.1)
