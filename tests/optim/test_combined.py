"""Several optimisers as one: the steps, schedulers, hooks, scaler, states, and bad input."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from nets import Net, both, train
from skewflow.optim import CombinedOptimizer, FlowAdam, FlowSGD

HALF = lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5)  # noqa: E731


def made(seed=0, dtype=torch.float64, **options):
    net = Net(seed=seed, dtype=dtype)
    return net, CombinedOptimizer(both(net, **options))


def assert_same(one, other):
    for (name, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), name


def test_its_step_is_the_steps_of_its_optimisers():
    apart, (net, combined) = Net(), made()
    train(apart, both(apart), 5)
    train(net, [combined], 5)
    assert_same(apart, net)
    assert combined.param_groups[0] is combined.optimizers[0].param_groups[0]


def test_a_scheduler_drives_every_group():
    apart, (net, combined) = Net(), made()
    pair = both(apart)
    for optimizers, model in ((pair, apart), ([combined], net)):
        schedulers = [HALF(o) for o in optimizers]
        for _ in range(5):
            train(model, optimizers, 1)
            for scheduler in schedulers:
                scheduler.step()
    assert_same(apart, net)
    assert [g["lr"] for g in combined.param_groups] == [o.param_groups[0]["lr"] for o in pair]


def test_a_scheduler_of_momentum_finds_what_all_groups_have():
    net = Net()
    flow, rest = FlowAdam([net.turn.weight], lr=0.1), torch.optim.AdamW([net.head.weight])
    combined = CombinedOptimizer([flow, rest])
    torch.optim.lr_scheduler.OneCycleLR(combined, max_lr=0.1, total_steps=9, base_momentum=0.7)
    assert [g["betas"][0] for g in combined.param_groups] == [0.95, 0.95]
    _, mixed = made()
    with pytest.raises(ValueError, match="cycle_momentum"):
        torch.optim.lr_scheduler.OneCycleLR(mixed, max_lr=0.1, total_steps=9)


def test_hooks_see_one_step_and_one_state():
    net, combined = made()
    seen = []
    combined.register_step_pre_hook(lambda *_: seen.append("before"))
    combined.register_step_post_hook(lambda *_: seen.append("after"))
    combined.register_state_dict_post_hook(lambda _, state: {**state, "note": len(state["state"])})
    train(net, [combined], 2)
    assert seen == ["before", "after"] * 2
    assert combined.state_dict()["note"] == len(list(net.parameters()))


def test_a_closure_is_called_once():
    net, combined = made()
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        combined.zero_grad()
        loss = sum(p.square().sum() * (1 + i) for i, p in enumerate(net.parameters()))
        loss.backward()
        return loss.detach()

    with torch.no_grad():
        assert float(combined.step(closure)) > 0
    assert calls == [True]


def test_a_grad_scaler_changes_no_bit_and_skips_all_where_one_overflows():
    (plain, one), (scaled, other) = (made(dtype=torch.float32) for _ in range(2))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    train(plain, [one], 3)
    train(scaled, [other], 3, scaler)
    assert_same(plain, scaled)
    before = copy.deepcopy(scaled.state_dict())
    for p in scaled.parameters():
        p.grad = torch.ones_like(p)
    scaled.head.weight.grad[0, 0] = torch.inf
    scaler.scale(torch.ones(()))
    scaler.step(other)
    for name, value in scaled.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_bad_gradient_of_an_orthogonal_weight_leaves_all_weights_alone():
    net = Net()
    flow, rest = both(net)
    combined = CombinedOptimizer([rest, flow])
    before = copy.deepcopy(net.state_dict())
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    net.turn.weight.grad[0, 0] = torch.nan
    with pytest.raises(ValueError, match="must be finite"):
        combined.step()
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("how", ["state", "copy"])
def test_a_resumed_run_has_the_same_bits(how):
    net, combined = made()
    train(net, [combined], 3)
    if how == "state":
        file = io.BytesIO()
        torch.save(combined.state_dict(), file)
        file.seek(0)
        again, resumed = made(seed=1)
        again.load_state_dict(net.state_dict())
        resumed.load_state_dict(torch.load(file, weights_only=True))
    else:
        again, resumed = copy.deepcopy((net, combined))
    for model, optimizer in ((net, combined), (again, resumed)):
        scheduler = HALF(optimizer)  # which finds the groups that are stepped
        for seed in (5, 6, 7):
            train(model, [optimizer], 1, seed=seed)
            scheduler.step()
    assert_same(net, again)
    assert len(resumed.state) == len(list(net.parameters()))


def test_what_is_written_to_its_state_arrives():
    net, combined = made()
    train(net, [combined], 1)
    for p, state in combined.state.items():  # so Lightning moves a state to a device
        combined.state[p] = {**state, "seen": True}
    assert all(o.state[p]["seen"] for o in combined.optimizers for p in o.state)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
@pytest.mark.parametrize("flat", [True, False], ids=["flat", "nested"])
def test_torchs_checkpoint_resumes_to_the_bit(flat, tmp_path):
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    net, combined = made()
    train(net, [combined], 3)
    state = get_optimizer_state_dict(net, combined, options=options)
    checkpoint.save({"o": state, "m": net.state_dict()}, checkpoint_id=tmp_path)
    train(net, [combined], 3, seed=8)
    again, resumed = made(seed=1)
    loaded = {
        "o": get_optimizer_state_dict(again, resumed, options=options),
        "m": again.state_dict(),
    }
    checkpoint.load(loaded, checkpoint_id=tmp_path)
    again.load_state_dict(loaded["m"])
    set_optimizer_state_dict(again, resumed, loaded["o"], options=options)
    train(again, [resumed], 3, seed=8)
    assert_same(net, again)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("block_size", [2, "dense", "auto"])
def test_asking_for_its_state_keeps_every_bit_of_the_weights(block_size, dtype):
    """torch takes a step with lr=0 to make the states, maybe after it has loaded the weights."""
    net, combined = made(dtype=dtype, block_size=block_size)
    before = copy.deepcopy(net)
    get_optimizer_state_dict(net, combined)
    assert combined.state
    assert_same(net, before)


def test_a_group_goes_to_the_last_optimiser():
    net, combined = made()
    p = nn.Parameter(torch.ones(2))
    combined.add_param_group({"params": [("extra", p)], "lr": 1.0})
    assert combined.param_groups[-1] is combined.optimizers[1].param_groups[-1]
    p.grad = torch.ones(2)
    combined.step()
    assert not torch.equal(p, torch.ones(2))
    with pytest.raises(ValueError, match="must belong to one optimiser"):
        combined.add_param_group({"params": [net.turn.weight]})


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda net, *_: [], ValueError, "at least one optimiser: got none"),
        (lambda net, flow, rest: [flow, net], TypeError, "optimisers of torch: got a Net"),
        (lambda net, flow, rest: [flow, rest, flow], ValueError, "FlowSGD holds some"),
        (
            lambda net, flow, rest: [flow, torch.optim.LBFGS([net.head.weight])],
            ValueError,
            "without a closure: LBFGS needs one",
        ),
    ],
)
def test_what_cannot_be_combined_is_refused(make, error, message):
    net = Net()
    with pytest.raises(error, match=message):
        CombinedOptimizer(make(net, *both(net)))


def test_a_state_that_one_optimiser_refuses_changes_none():
    net, combined = made()
    train(net, [combined], 1)
    state = copy.deepcopy(combined.state_dict())
    del state["param_groups"][0]["momentum"]
    _, resumed = made(seed=1)
    before = copy.deepcopy(resumed.state_dict())
    with pytest.raises(ValueError, match="has no `momentum`"):
        resumed.load_state_dict(state)
    assert resumed.state_dict()["param_groups"] == before["param_groups"]
    with pytest.raises(ValueError, match="different number of parameter groups"):
        resumed.load_state_dict({**state, "param_groups": state["param_groups"][:1]})


def test_the_report_keeps_weights_of_the_same_name():
    first, second = (nn.Parameter(torch.eye(d)) for d in (4, 6))
    combined = CombinedOptimizer([FlowSGD([first], lr=0.1), FlowAdam([second], lr=0.1)])
    report = combined.report()
    assert report["parameter_0_of_group_0/block_size"] == 4
    assert report["optimizer_1_parameter_0_of_group_0/block_size"] == 6
