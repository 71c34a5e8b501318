"""FlowSGD among its neighbours: schedulers, scalers, compilers, groups, other optimisers."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers
from torch.optim.optimizer import register_optimizer_step_pre_hook

from helpers import EPS, assert_close, numbers_of, randn
from nets import Net, both, loss_of, train
from skewflow.geometry import orthogonality_error
from skewflow.nn import orthogonal_
from skewflow.optim import FlowAdam, FlowSGD
from skewflow.samplers import RoundRobin


def pair(generator, **options):
    """Two equal weights with equal gradients, each with its own FlowSGD."""
    p = nn.Parameter(orthogonal_(torch.empty(8, 8, dtype=torch.float64), generator=generator))
    p.grad = randn(8, 8, generator=generator)
    q = nn.Parameter(p.detach().clone())
    q.grad = p.grad.clone()
    options = {"lr": 0.02, "momentum": 0.9, "block_size": 2} | options
    return (p, FlowSGD([p], **options)), (q, FlowSGD([q], **options))


SCHEDULERS = {
    "step": lambda o: schedulers.StepLR(o, 3, gamma=0.5),
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, T_max=8),
    "one cycle, momentum too": lambda o: schedulers.OneCycleLR(o, max_lr=0.1, total_steps=12),
    "plateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=1),
    "lambda": lambda o: schedulers.LambdaLR(o, lambda step: 1 / (1 + step)),
    "sequence": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, total_iters=4), schedulers.ExponentialLR(o, 0.9)], [4]
    ),
}


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_scheduler_drives_it_as_it_drives_sgd(make, as_tensor, generator):
    lr = torch.tensor(0.02, dtype=torch.float64) if as_tensor else 0.02
    (p, scheduled), (q, by_hand) = pair(generator, lr=lr)
    sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.02, momentum=0.9)
    ours, theirs = make(scheduled), make(sgd)
    seen = set()
    for _ in range(10):
        for name in ("lr", "momentum"):
            assert float(scheduled.param_groups[0][name]) == sgd.param_groups[0][name]
            by_hand.param_groups[0][name] = sgd.param_groups[0][name]
        seen.add((sgd.param_groups[0]["lr"], sgd.param_groups[0]["momentum"]))
        for optimizer in (scheduled, by_hand, sgd):
            optimizer.step()
        for scheduler in (ours, theirs):
            plateau = isinstance(scheduler, schedulers.ReduceLROnPlateau)
            scheduler.step(*[1.0] if plateau else [])
    assert len(seen) > 1 and torch.equal(p, q)


def test_a_tensor_as_lr_is_read_at_every_step(generator):
    lr = torch.tensor(0.02, dtype=torch.float64)
    (p, by_tensor), (q, by_number) = pair(generator, lr=lr)
    for value in (0.02, 0.0, 0.5):
        lr.fill_(value)
        by_number.param_groups[0]["lr"] = value
        by_tensor.step()
        by_number.step()
        assert torch.equal(p, q)


@pytest.mark.bad_input
def test_a_tensor_of_several_elements_is_no_lr(generator):
    with pytest.raises(ValueError, match=r"`lr` must be a number or one element: got shape \(2,\)"):
        pair(generator, lr=torch.tensor([0.1, 0.2]))


@pytest.mark.parametrize("clip", ["norm", "value"])
def test_a_clipped_gradient_is_the_gradient_of_the_step(clip, generator):
    (p, clipped), (q, by_hand) = pair(generator, momentum=0.0)
    if clip == "norm":
        norm = nn.utils.clip_grad_norm_([p], 0.5)
        q.grad *= torch.clamp(0.5 / (norm + 1e-6), max=1.0)
    else:
        nn.utils.clip_grad_value_([p], 0.1)
        q.grad.clamp_(-0.1, 0.1)
    clipped.step()
    by_hand.step()
    assert torch.equal(p, q)


def test_beside_adamw_a_net_learns_and_the_weight_stays_orthogonal():
    model = Net()
    losses = train(model, both(model), 200)
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    assert orthogonality_error(model.turn.weight.detach()) < EPS[torch.float64]


def test_a_grad_scaler_changes_no_bit():
    plain, scaled = Net(dtype=torch.float32), Net(dtype=torch.float32)
    train(plain, both(plain), 5)
    train(scaled, both(scaled), 5, torch.amp.GradScaler("cpu", init_scale=2.0**10))
    for p, q in zip(plain.parameters(), scaled.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_grad_scaler_skips_a_step_whose_gradients_overflow(bad):
    model = Net(dtype=torch.float32)
    flow, adam = both(model)
    scaler = torch.amp.GradScaler("cpu")
    train(model, (flow, adam), 2, scaler)
    before, state = copy.deepcopy(model.state_dict()), copy.deepcopy(flow.state_dict())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    model.turn.weight.grad[1, 2] = bad
    scaler.scale(torch.ones(()))
    scale = scaler.get_scale()
    scaler.step(flow)
    scaler.update()
    assert torch.equal(model.turn.weight, before["turn.weight"])
    assert scaler.get_scale() < scale
    after = flow.state_dict()
    assert after["param_groups"] == state["param_groups"]  # the step count, too
    assert torch.equal(after["state"][0]["momentum_buffer"], state["state"][0]["momentum_buffer"])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_trains_to_the_same_weights(backend):
    plain, model = Net(), Net()
    train(plain, both(plain), 5)
    train(model, both(model), 5, compiled=torch.compile(model, backend=backend))
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        assert_close("parameter", p, q)


# torch's tracer raises it by itself: the same with torch.optim.SGD in place of ours.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("options", [{}, {"block_size": 3}, {"sampler": RoundRobin()}], ids=str)
def test_a_step_inside_a_compiled_function_is_the_same_step(options):
    weights, calls = [], []
    for compiled in (False, True):
        model = Net()
        flow, _ = both(model, **options)
        flow.register_step_post_hook(lambda *_: calls.append(1))

        def update(generator, model=model, flow=flow):
            flow.zero_grad()
            loss_of(model, generator).backward()
            flow.step()

        call = torch.compile(update, backend="eager") if compiled else update
        for _ in range(3):
            call(torch.Generator().manual_seed(3))  # torch 2.11 warns of one made inside
        weights.append(model.turn.weight.detach())
    assert torch.equal(*weights) and len(calls) == 6


def test_groups_with_different_everything_step_as_they_would_alone(generator):
    options = [
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "block_size": 3, "seed": 4},
        {"lr": 0.01, "maximize": True, "block_size": "dense", "retraction": "polar"},
        {"lr": 0.02, "momentum": 0.5, "sampler": RoundRobin(), "block_size": 2, "seed": 9},
        {"lr": 0.03, "block_size": 2, "retraction": "cayley", "check_every": 2},
    ]
    shapes, dtypes = [(8, 8), (5, 9), (12, 4), (6, 3, 3, 3)], [torch.float64, torch.float32]
    params = [
        nn.Parameter(orthogonal_(torch.empty(s, dtype=dtypes[i % 2]), generator=generator))
        for i, s in enumerate(shapes)
    ]
    alone = [nn.Parameter(p.detach().clone()) for p in params]
    together = FlowSGD(
        [{"params": [p], **o} for p, o in zip(params, options, strict=True)], lr=1.0, momentum=0.0
    )
    singles = []
    for i, (p, o) in enumerate(zip(alone, options, strict=True)):
        # Weights that never have a gradient, so that this one has its number in `together`.
        before = [nn.Parameter(torch.eye(2, dtype=torch.float64)) for _ in range(i)]
        singles.append(FlowSGD([*before, p], **o))
    for _ in range(4):
        for p, q in zip(params, alone, strict=True):
            p.grad = randn(*p.shape, generator=generator, dtype=p.dtype)
            q.grad = p.grad.clone()
        for optimizer in (together, *singles):
            optimizer.step()
    for p, q in zip(params, alone, strict=True):
        assert torch.equal(p, q)


def test_a_tied_weight_takes_one_step_with_the_sum_of_its_gradients(generator):
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)).double()
    model[1].weight = model[0].weight
    orthogonal_(model[0].weight, generator=generator)
    q = nn.Parameter(model[0].weight.detach().clone())
    x = randn(4, 8, generator=generator)
    model(x).pow(3).sum().backward()
    (x @ q.mT @ q.mT).pow(3).sum().backward()
    FlowSGD(model.parameters(), lr=0.01, block_size=2).step()
    FlowSGD([q], lr=0.01, block_size=2).step()
    assert_close("tied", q, model[1].weight)


def test_a_frozen_weight_waits_until_it_is_thawed():
    model = Net()
    model.turn.weight.requires_grad_(False)
    before = model.turn.weight.clone()
    flow, adam = both(model)
    train(model, (flow, adam), 3)
    assert torch.equal(model.turn.weight, before)
    model.turn.weight.requires_grad_(True)
    train(model, (flow, adam), 3)
    assert not torch.equal(model.turn.weight, before)
    assert orthogonality_error(model.turn.weight.detach()) < EPS[torch.float64]


@pytest.mark.parametrize("block_size", [2, 3, "dense"])
def test_gradients_set_to_zero_leave_the_weight_where_it_is(block_size, generator):
    (p, optimizer), _ = pair(generator, momentum=0.0, block_size=block_size)
    before = p.detach().clone()
    optimizer.zero_grad(set_to_none=False)
    assert p.grad is not None and not p.grad.any()
    optimizer.step()
    assert_close("unmoved", before, p)
    optimizer.zero_grad()
    assert p.grad is None


def test_a_group_added_on_the_way_is_saved_and_resumed(generator):
    def start():
        given = torch.Generator().manual_seed(2)
        return [
            nn.Parameter(orthogonal_(torch.empty(6, 6, dtype=torch.float64), generator=given))
            for _ in range(2)
        ]

    def steps(optimizer, params, seed):
        gradients = torch.Generator().manual_seed(seed)
        for _ in range(3):
            for p in params:
                p.grad = randn(6, 6, generator=gradients)
            optimizer.step()

    unbroken = start()
    optimizer = FlowSGD([unbroken[0]], lr=0.1, momentum=0.9, block_size=2)
    steps(optimizer, unbroken[:1], 3)
    optimizer.add_param_group({"params": [unbroken[1]], "lr": 0.01, "momentum": 0.5})
    steps(optimizer, unbroken, 4)
    resumed = [nn.Parameter(p.detach().clone()) for p in unbroken]
    again = FlowSGD([{"params": [p]} for p in resumed], lr=9.0, block_size="dense")
    again.load_state_dict(optimizer.state_dict())
    assert [g["lr"] for g in again.param_groups] == [0.1, 0.01]
    steps(optimizer, unbroken, 5)
    steps(again, resumed, 5)
    for p, q in zip(unbroken, resumed, strict=True):
        assert torch.equal(p, q)


def test_a_profiler_sees_the_step(generator):
    (_, optimizer), _ = pair(generator)
    optimizer.step()
    # Without `acc_events` torch 2.11 warns that events of earlier cycles are dropped.
    options = {"activities": [torch.profiler.ProfilerActivity.CPU], "acc_events": True}
    with torch.profiler.profile(**options) as profiler:
        optimizer.step()
    names = [event.key for event in profiler.key_averages()]
    assert f"Optimizer.step#{type(optimizer).__name__}.step" in names


def test_hooks_are_called_once_a_step_and_see_the_weight_before_and_after(generator):
    (p, optimizer), _ = pair(generator)
    before, seen = p.detach().clone(), []
    handle = register_optimizer_step_pre_hook(
        lambda o, *_: seen.append(("before", o is optimizer, torch.equal(p, before)))
    )
    try:
        optimizer.register_step_post_hook(
            lambda o, *_: seen.append(("after", o is optimizer, torch.equal(p, before)))
        )
        optimizer.step()
    finally:
        handle.remove()
    assert seen == [("before", True, True), ("after", True, False)]


@pytest.mark.parametrize("block_size", ["auto", "dense", 2])
def test_a_step_under_autocast_is_the_step(block_size, generator):
    p, q = (nn.Parameter(torch.eye(20)) for _ in range(2))
    ours, plain = (FlowSGD([w], lr=0.1, momentum=0.9, block_size=block_size) for w in (p, q))
    for _ in range(3):
        p.grad = torch.randn(20, 20, generator=generator)
        q.grad = p.grad.clone()
        with torch.autocast("cpu", torch.bfloat16):
            ours.step()
        plain.step()
    assert torch.equal(p, q)


def test_a_state_that_is_cleared_is_begun_anew(generator):
    p = nn.Parameter(torch.eye(8))
    optimizer = FlowSGD([p], lr=0.1, momentum=0.9, nonfinite="skip")
    p.grad = torch.randn(8, 8, generator=generator)
    optimizer.step()
    before = p.detach().clone()
    optimizer.state.clear()
    p.grad = torch.zeros(8, 8)
    optimizer.step()
    assert torch.allclose(p, before, atol=1e-6)
    assert "momentum_buffer" in optimizer.state_dict()["state"][0]
    optimizer.state.clear()
    p.grad = torch.full((8, 8), torch.nan)
    optimizer.step()
    assert optimizer.state[p]["skipped"] == 1


def test_gradients_with_a_graph_are_taken_as_they_are(generator):
    p = nn.Parameter(torch.eye(8))
    A = torch.randn(8, 8, generator=generator)
    (p.grad,) = torch.autograd.grad((p - A).square().sum(), p, create_graph=True)
    FlowSGD([p], lr=0.01).step()  # which warns of nothing
    assert not torch.equal(p, torch.eye(8))
    p.grad = None  # or the graph holds on to it


def test_a_momentum_that_may_not_be_written_leaves_the_weight_alone(generator):
    p = nn.Parameter(torch.eye(8))
    with torch.inference_mode():
        optimizer = FlowSGD([p], lr=0.1, momentum=0.9)
    p.grad = torch.randn(8, 8, generator=generator)
    before = p.detach().clone()
    with pytest.raises(RuntimeError, match="inference"):
        optimizer.step()
    assert torch.equal(p, before)


def test_a_full_graph_is_refused_with_the_way_out(generator):
    (p, optimizer), _ = pair(generator)
    optimizer.step()
    before = p.detach().clone()
    with pytest.raises(Exception, match="steps outside of compiled graphs.*fullgraph=False"):
        torch.compile(lambda: optimizer.step(), backend="eager", fullgraph=True)()
    assert torch.equal(p, before)


@pytest.mark.parametrize("make", [FlowSGD, FlowAdam])
def test_autocast_changes_nothing(make, generator):
    ends = []
    for enabled in (False, True):
        p = nn.Parameter(orthogonal_(torch.empty(64, 64), generator=generator.manual_seed(3)))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            optimizer = make([p], lr=0.01, block_size=2)
            for _ in range(2):
                p.grad = torch.randn(64, 64, generator=generator)
                (report,) = numbers_of(optimizer.report())
                optimizer.step()
        ends.append((p.detach(), report))
    assert torch.equal(ends[0][0], ends[1][0]) and ends[0][1] == ends[1][1]
