"""FlowSGD and FlowAdam through `torch.distributed.checkpoint`, in one process; and older states."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from nets import Net, train
from skewflow.errors import SamplingError
from skewflow.nn import orthogonal_
from skewflow.optim import FlowAdam, FlowSGD, NaturalSGD, split_parameters
from skewflow.samplers import HeavyMatchings, HRegular, RelabelledRoundRobin, RoundRobin, Uniform

CASES = {
    "plain": (FlowSGD, {"block_size": 2}),
    "momentum": (FlowSGD, {"block_size": 3, "momentum": 0.9}),
    "exact": (FlowSGD, {"block_size": "dense", "nonfinite": "skip"}),
    "adam": (FlowAdam, {"block_size": 2}),
    "sweeps": (FlowSGD, {"block_size": 2, "sampler": RoundRobin()}),
    "relabelled": (FlowAdam, {"block_size": 2, "sampler": RelabelledRoundRobin()}),
    "no state": (FlowSGD, {"block_size": 2, "sampler": HRegular(2)}),
    "matchings": (FlowSGD, {"block_size": 2, "sampler": HeavyMatchings()}),
}


def both(model, case):
    cls, options = CASES[case]
    ours, rest = split_parameters(model, "turn.weight")
    return cls(ours, **{"lr": 0.02, **options}), torch.optim.AdamW(rest, lr=0.02)


def state_of(model, optimizer, flat):
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    return options, get_optimizer_state_dict(model, optimizer, options=options)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
@pytest.mark.parametrize("flat", [True, False], ids=["flat", "nested"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_a_run_saved_by_torch_goes_on_with_the_same_bits(case, dtype, flat, tmp_path):
    model = Net(dtype=dtype)
    optimizers = both(model, case)
    train(model, optimizers, 4)
    for optimizer, name in zip(optimizers, ("flow", "adam"), strict=True):
        _, state = state_of(model, optimizer, flat)
        checkpoint.save({"o": state, "m": model.state_dict()}, checkpoint_id=tmp_path / name)
    train(model, optimizers, 3, seed=8)

    resumed = Net(seed=1, dtype=dtype)
    optimizers = both(resumed, case)
    for optimizer, name in zip(optimizers, ("flow", "adam"), strict=True):
        options, state = state_of(resumed, optimizer, flat)
        loaded = {"o": state, "m": resumed.state_dict()}
        checkpoint.load(loaded, checkpoint_id=tmp_path / name)
        resumed.load_state_dict(loaded["m"])
        set_optimizer_state_dict(resumed, optimizer, loaded["o"], options=options)
    train(resumed, optimizers, 3, seed=8)
    for p, q in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
@pytest.mark.parametrize("flat", [True, False], ids=["flat", "nested"])
def test_torch_saves_the_moment_of_natural_steps(flat, tmp_path, generator):
    def started(seed):
        layer = nn.Linear(8, 12, bias=False, dtype=torch.float64)
        orthogonal_(layer.weight, generator=torch.Generator().manual_seed(seed))
        return layer, NaturalSGD(layer.parameters(), lr=0.1)

    def step(layer, optimizer, generator):
        p = layer.weight
        A, B = (torch.randn(n, 2, generator=generator, dtype=p.dtype) for n in p.shape)
        optimizer.step(factors={p: (A, B)})

    layer, optimizer = started(0)
    for _ in range(3):
        step(layer, optimizer, generator)
    _, state = state_of(layer, optimizer, flat)
    checkpoint.save({"o": state, "m": layer.state_dict()}, checkpoint_id=tmp_path / "saved")

    resumed, other = started(1)
    options, state = state_of(resumed, other, flat)
    loaded = {"o": state, "m": resumed.state_dict()}
    checkpoint.load(loaded, checkpoint_id=tmp_path / "saved")
    resumed.load_state_dict(loaded["m"])
    set_optimizer_state_dict(resumed, other, loaded["o"], options=options)
    for each in ((layer, optimizer), (resumed, other)):
        step(*each, torch.Generator().manual_seed(5))
    assert torch.equal(layer.weight, resumed.weight)


@pytest.mark.parametrize("case", CASES)
def test_asking_for_a_state_changes_nothing(case):
    model = Net()
    optimizer, _ = both(model, case)
    before = copy.deepcopy(optimizer.state_dict()["param_groups"])
    get_optimizer_state_dict(model, optimizer)  # torch steps an optimiser that has no state
    assert optimizer.state_dict()["param_groups"] == before
    assert optimizer.param_groups[0]["step"] == 0


OLD = {
    "sweep": (FlowSGD, {"momentum": 0.9, "block_size": 2}),
    "relabelled_round_robin": (FlowSGD, {"block_size": 2, "sampler": RelabelledRoundRobin()}),
    "heavy_matchings": (
        FlowSGD,
        {"momentum": 0.5, "block_size": 2, "sampler": HeavyMatchings()},
    ),
    "adam": (FlowAdam, {"block_size": 3}),
}


@pytest.mark.parametrize("case", OLD)
def test_a_state_of_version_2_goes_on_as_it_did(case):
    """The file was written by the code before samplers were saved as tensors."""
    saved = torch.load(Path(__file__).with_name("saved") / "version_2.pt", weights_only=True)[case]
    cls, options = OLD[case]
    p = nn.Parameter(saved["weight"])
    optimizer = cls([p], lr=0.02, **options)
    optimizer.load_state_dict(state_dict=saved["optimizer"])
    g = torch.Generator()
    g.set_state(saved["generator"])
    for _ in range(5):
        p.grad = torch.randn(8, 5, generator=g, dtype=torch.float64)
        optimizer.step()
    torch.testing.assert_close(p.detach(), saved["end"], rtol=0, atol=1e-12)


def test_samplers_of_a_state_need_samplers(generator):
    p = nn.Parameter(orthogonal_(torch.empty(6, 6), generator=generator))
    state = FlowSGD([p], lr=0.1, block_size=2, sampler=RoundRobin()).state_dict()
    for options, message in (
        ({"block_size": 2}, "drawn by a sampler of the kind RoundRobin.*Nothing was changed"),
        ({"sampler": Uniform(8)}, "holds samplers for parameter 0"),
    ):
        optimizer = FlowSGD([p], lr=0.1, **options)
        with pytest.raises(SamplingError, match=message):
            optimizer.load_state_dict(state)
