"""FlowSGD on the CPU: what a step does, torch.optim's manners, state, and errors."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from helpers import assert_close, half, randn, scipy_expm
from skewflow.errors import (
    BlockSizeError,
    DtypeError,
    FamilyError,
    NonFiniteGradientError,
    NotOnManifoldError,
    ShapeError,
)
from skewflow.geometry import check_stiefel, haar, orthogonality_error, tangent_project
from skewflow.geometry.matrices import MatrixView, as_matrices
from skewflow.kernels.permutation import matching_at, order_at
from skewflow.kernels.rotate_pairs.reference import step_pairs
from skewflow.kernels.update import Update
from skewflow.nn import orthogonal_
from skewflow.optim import FlowAdam, FlowSGD
from skewflow.samplers import HeavyMatchings, HRegular, Optimal, RoundRobin
from skewflow.tournaments import EdgeWeights, Partition, Tournament, block_sizes, edge_probability

SHAPES = [(8, 8), (9, 4), (4, 9), (3, 7, 5), (3, 5, 7), (8, 3, 3, 3), (40, 2, 3, 3)]


def weight(shape, generator, dtype=torch.float64):
    return nn.Parameter(orthogonal_(torch.empty(shape, dtype=dtype), generator=generator))


def set_gradient(p, generator):
    p.grad = randn(*p.shape, generator=generator, dtype=p.dtype)


def estimate(X, D, s, stream, step):
    """The estimate that a fused step draws, as a (d, d) matrix, from the samplers' own parts."""
    d = X.shape[0]
    if s == 2:
        pairs, alone = matching_at(d, 0, stream, torch.tensor(step))
        partition = Partition.of([*pairs.tolist(), *[[i] for i in alone.tolist()]])
    else:
        order = order_at(d, 0, stream, torch.tensor(step))
        partition = Partition.from_order(order, block_sizes(d, s))
    W = EdgeWeights(X, D)
    return Tournament(partition, float(1 / edge_probability(d, s))).dense(W)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("s", [2, 3])
def test_a_step_is_the_exponential_of_the_estimate_it_draws(shape, s, generator):
    p = weight(shape, generator)
    optimizer = FlowSGD([p], lr=0.01, block_size=s)
    for step in range(3):
        set_gradient(p, generator)
        X, G = as_matrices(p.detach().clone()), MatrixView.of(p)(p.grad)
        expected = torch.stack(
            [scipy_expm(-0.01 * estimate(X[b], G[b], s, b, step)) @ X[b] for b in range(len(X))]
        )
        optimizer.step()
        assert_close("X", expected, as_matrices(p.detach()))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("retraction", ["exp", "cayley", "polar"])
def test_exact_steps_of_many_weights_are_those_of_each(retraction, momentum, generator):
    shapes = [(9, 4), (6, 6), (4, 9), (2, 9, 4), (4, 1, 3, 3), (9, 4), (6, 6), (2, 9, 4)]
    params = [weight(shape, generator) for shape in shapes]
    for p in params:
        set_gradient(p, generator)
    params[5].grad[0, 0] = torch.nan
    options = {
        "lr": 0.1, "block_size": "dense", "retraction": retraction, "momentum": momentum,
        "nonfinite": "skip",
    }  # fmt: skip
    alone = copy.deepcopy(params)
    for p, q in zip(params, alone, strict=True):
        q.grad = p.grad.clone()
    together = FlowSGD(params, **options)
    singles = [FlowSGD([q], **options) for q in alone]
    for _ in range(3):
        together.step()
        for single in singles:
            single.step()
    for p, q in zip(params, alone, strict=True):
        assert_close("p", q.detach(), p.detach(), factor=0.1)
    skipped = [together.state[p]["skipped"].item() for p in params]
    assert skipped == [0, 0, 0, 0, 0, 3, 0, 0]


@pytest.mark.parametrize(
    "shape, block_size, momentum", half(SHAPES, [2, 3, "dense", "auto"], [0.0, 0.9])
)
def test_every_shape_stays_orthogonal_and_approaches_the_target(
    shape, block_size, momentum, generator
):
    p = weight(shape, generator)
    X = as_matrices(p.detach())
    # A target in reach: the start, rotated a little.
    A = randn(len(X), X.shape[1], X.shape[1], generator=generator)
    rotation = torch.linalg.matrix_exp(0.1 * (A - A.mT))
    target = MatrixView.of(p).restore(rotation @ X).clone()
    scale = 1 if block_size == "dense" else X.shape[1] - 1
    optimizer = FlowSGD(
        [p], lr=0.2 / scale * (1 - momentum), momentum=momentum, block_size=block_size
    )
    first = (p - target).square().sum().item()
    for _ in range(200):
        optimizer.zero_grad()
        ((p - target).square().sum() / 2).backward()
        optimizer.step()
    assert (p - target).square().sum().item() < 0.2 * first
    assert orthogonality_error(as_matrices(p.detach())).max() < 1e-12


@pytest.mark.parametrize(
    "retraction, block_size",
    [("cayley", 2), ("cayley", 3), ("cayley", "dense"), ("polar", "dense")],
)
def test_other_retractions_stay_orthogonal_and_agree_to_second_order(
    retraction, block_size, generator
):
    start = weight((9, 5), generator)
    errors = []
    for lr in (1e-3, 5e-4):
        ends = []
        for kind in ("exp", retraction):
            p = nn.Parameter(start.detach().clone())
            p.grad = randn(9, 5, generator=torch.Generator().manual_seed(3))
            FlowSGD([p], lr=lr, block_size=block_size, retraction=kind).step()
            assert orthogonality_error(p.detach()) < 1e-13
            ends.append(p.detach())
        errors.append((ends[0] - ends[1]).norm().item())
    assert errors[0] / errors[1] > 3.5  # second order or better


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("s", [2, 3])
def test_the_momentum_is_that_of_torch_sgd_turned_with_its_rows(s, nesterov, generator):
    p = weight((6, 4), generator)
    optimizer = FlowSGD([p], lr=0.1, momentum=0.9, nesterov=nesterov, block_size=s)
    M = torch.zeros_like(p)
    for step in range(4):
        set_gradient(p, generator)
        X, M = p.detach().clone(), 0.9 * M + p.grad
        D = p.grad + 0.9 * M if nesterov else M
        R = scipy_expm(-0.1 * estimate(X, D, s, 0, step))
        X, M = R @ X, R @ M
        optimizer.step()
        assert_close("X", X, p.detach())
        assert_close("momentum", M, optimizer.state[p]["momentum_buffer"])


def test_maximize_turns_the_step_round(generator):
    p = weight((6, 6), generator)
    q = nn.Parameter(p.detach().clone())
    set_gradient(p, generator)
    q.grad = -p.grad
    FlowSGD([p], lr=0.1, block_size=2, maximize=True).step()
    FlowSGD([q], lr=0.1, block_size=2).step()
    assert torch.equal(p, q)


@pytest.mark.parametrize("shape", [(9, 5), (12, 3), (3, 12), (6, 6)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 2},
        {"block_size": 3},
        {"block_size": "dense"},
        {"block_size": "dense", "retraction": "polar"},
    ],
    ids=str,
)
def test_a_step_leaves_the_gradient_untouched(options, shape, generator):
    p = weight(shape, generator)
    set_gradient(p, generator)
    before, place, version = p.grad.clone(), p.grad.data_ptr(), p.grad._version
    for momentum in (0.0, 0.9):
        FlowSGD([p], lr=0.1, momentum=momentum, **options).step()
        assert torch.equal(p.grad, before) and p.grad.data_ptr() == place
        assert p.grad._version == version


def test_parameters_without_a_gradient_are_left_alone(generator):
    p, q = weight((6, 6), generator), weight((6, 6), generator)
    before = q.detach().clone()
    set_gradient(p, generator)
    FlowSGD([p, q], lr=0.1, block_size=2).step()
    assert torch.equal(q, before)


@pytest.mark.parametrize(
    "options",
    [{"block_size": 2}, {"block_size": "dense"}, {"block_size": "dense", "retraction": "polar"}],
    ids=str,
)
def test_strided_and_channels_last_weights_are_stepped_in_place(options, generator):
    base = torch.zeros(12, 16, dtype=torch.float64)
    p = nn.Parameter(base[::2, 3:9])
    orthogonal_(p.data, generator=generator)
    conv = weight((4, 3, 3, 3), generator)
    conv.data = conv.data.to(memory_format=torch.channels_last)
    for q in (p, conv):
        place, strides = q.data_ptr(), q.stride()
        optimizer = FlowSGD([q], lr=0.1, momentum=0.5, **options)
        for _ in range(3):
            set_gradient(q, generator)
            optimizer.step()
        assert (q.data_ptr(), q.stride()) == (place, strides)
        assert check_stiefel(as_matrices(q.detach()))


def test_equal_shapes_in_one_optimiser_draw_different_blocks(generator):
    p, q = weight((20, 20), generator), None
    q = nn.Parameter(p.detach().clone())
    set_gradient(p, generator)
    q.grad = p.grad.clone()
    FlowSGD([p, q], lr=0.1, block_size=2).step()
    assert not torch.equal(p, q)


def run(make, steps, generator, resume_at=None, tmp_path=None, shape=(9, 5), dtype=torch.float64):
    start = torch.Generator().manual_seed(5)
    params = [weight(shape, start, dtype), weight((6, 6), start, dtype)]
    optimizer = make(params)
    gradients = torch.Generator().manual_seed(6)
    for step in range(steps):
        if step == resume_at:
            torch.save({"o": optimizer.state_dict(), "p": params}, tmp_path / "state.pt")
            saved = torch.load(tmp_path / "state.pt", weights_only=True)
            params = [nn.Parameter(p.detach().clone()) for p in saved["p"]]
            optimizer = make(params)
            optimizer.load_state_dict(saved["o"])
        for p in params:
            set_gradient(p, gradients)
        optimizer.step()
    return params, optimizer


MAKERS = {
    "pairs": lambda ps: FlowSGD(ps, lr=0.1, block_size=2),
    "pairs-momentum": lambda ps: FlowSGD(ps, lr=0.1, momentum=0.9, block_size=2),
    "blocks-momentum": lambda ps: FlowSGD(ps, lr=0.1, momentum=0.9, block_size=3),
    "dense": lambda ps: FlowSGD(ps, lr=0.1, momentum=0.9, nesterov=True, block_size="dense"),
    "exponential": lambda ps: FlowSGD(ps, lr=0.1, momentum=0.9, block_size="dense"),
    "polar": lambda ps: FlowSGD(ps, 0.1, momentum=0.9, block_size="dense", retraction="polar"),
    "guarded": lambda ps: FlowSGD(ps, lr=0.1, block_size=2, check_every=2),
    "round_robin": lambda ps: FlowSGD(ps, lr=0.1, block_size=2, sampler=RoundRobin()),
    "h_regular": lambda ps: FlowSGD(ps, lr=0.01, momentum=0.9, block_size=3, sampler=HRegular(3)),
    "object": lambda ps: FlowSGD(ps, lr=0.01, block_size=2, sampler=RoundRobin()),
    "heavy": lambda ps: FlowSGD(ps, lr=0.01, block_size=2, sampler=HeavyMatchings()),
    "optimal": lambda ps: FlowSGD(ps, lr=0.01, block_size=2, sampler=Optimal(2)),
}


@pytest.mark.parametrize(
    "name, shape",
    [*((name, (9, 5)) for name in MAKERS), ("exponential", (12, 3)), ("polar", (3, 12))],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_resumed_run_gives_the_same_bits(name, shape, dtype, generator, tmp_path):
    options = {"shape": shape, "dtype": dtype}
    unbroken, _ = run(MAKERS[name], 9, generator, **options)
    resumed, _ = run(MAKERS[name], 9, generator, resume_at=4, tmp_path=tmp_path, **options)
    for p, q in zip(unbroken, resumed, strict=True):
        assert torch.equal(p, q)


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(generator):
    first, _ = run(MAKERS["pairs"], 5, generator)
    second, _ = run(MAKERS["pairs"], 5, generator)
    other, _ = run(lambda ps: FlowSGD(ps, lr=0.1, block_size=2, seed=1), 5, generator)
    assert torch.equal(first[0], second[0]) and not torch.equal(first[0], other[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_have_a_float32_master(dtype, generator):
    p = weight((16, 8), generator, dtype)
    optimizer = FlowSGD([p], lr=0.01, momentum=0.9, block_size=2)
    for _ in range(200):
        set_gradient(p, generator)
        optimizer.step()
    master = optimizer.state[p]["master"]
    assert master.dtype == optimizer.state[p]["momentum_buffer"].dtype == torch.float32
    assert torch.equal(master.to(dtype), p.detach())
    assert orthogonality_error(master) / 8**0.5 < 1e-5
    assert orthogonality_error(p.detach()) / 8**0.5 < 5e-3


def test_a_master_is_made_once_and_kept(generator):
    p = weight((8, 8), generator, torch.bfloat16)
    optimizer = FlowSGD([p], lr=0.01, block_size=2)
    set_gradient(p, generator)
    optimizer.step()
    master = optimizer.state[p]["master"]
    for _ in range(3):
        optimizer.step()
    assert optimizer.state[p]["master"] is master


def test_every_group_has_its_own_seed_also_with_samplers_on_the_host(generator):
    ends = []
    for seed in (1, 2):
        p, q = (nn.Parameter(torch.eye(8, dtype=torch.float64)) for _ in range(2))
        groups = [{"params": [p]}, {"params": [q], "seed": seed}]
        optimizer = FlowSGD(groups, lr=0.01, block_size=2, sampler=RoundRobin())
        for r in (p, q):
            r.grad = randn(8, 8, generator=torch.Generator().manual_seed(9))
        optimizer.step()
        ends.append((p.detach(), q.detach()))
    assert torch.equal(ends[0][0], ends[1][0]) and not torch.equal(ends[0][1], ends[1][1])


def test_a_half_weight_that_somebody_else_wrote_gets_a_new_master(generator):
    p = weight((8, 8), generator, torch.bfloat16)
    optimizer = FlowSGD([p], lr=0.0, block_size=2)
    set_gradient(p, generator)
    optimizer.step()
    other = haar(8, generator=generator).to(torch.bfloat16)
    with torch.no_grad():
        p.copy_(other)
    optimizer.step()
    assert (p.detach() - other).abs().max() < 1e-2


def test_the_guard_polishes_a_weight_that_has_drifted(generator):
    p = weight((30, 12), generator, torch.float32)
    optimizer = FlowSGD([p], lr=0.0, block_size=2, check_every=4)
    with torch.no_grad():
        p.add_(1e-5 * randn(30, 12, generator=generator, dtype=torch.float32))
    drifted = orthogonality_error(p.detach()).item()
    for _ in range(4):
        set_gradient(p, generator)
        optimizer.step()
    assert orthogonality_error(p.detach()) < 1e-2 * drifted
    assert optimizer.state[p]["polishes"] == 1


@pytest.mark.parametrize("block_size", [2, 8, "dense"])
def test_many_steps_stay_on_the_manifold(block_size, generator):
    p = weight((32, 32), generator, torch.float32)
    optimizer = FlowSGD([p], lr=0.01, block_size=block_size)
    for _ in range(2000):
        p.grad = torch.randn(32, 32, generator=generator)
        optimizer.step()
    assert orthogonality_error(p.detach()) / 32**0.5 < 1e-5


def test_closures_schedulers_clipping_and_groups_work(generator):
    p, q = weight((6, 6), generator), weight((8, 4), generator)
    optimizer = FlowSGD([{"params": [p]}, {"params": [q], "lr": 0.02, "block_size": 2}], lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def closure():
        optimizer.zero_grad()
        loss = p.square().sum() + q[0].sum()
        loss.backward()
        nn.utils.clip_grad_norm_([p, q], 1.0)
        return loss

    loss = optimizer.step(closure)
    scheduler.step()
    assert loss.requires_grad and [g["lr"] for g in optimizer.param_groups] == [0.005, 0.01]
    optimizer.add_param_group({"params": [weight((4, 4), generator)]})
    assert len(optimizer.param_groups) == 3


def test_a_copied_optimiser_is_independent(generator):
    p = weight((6, 6), generator)
    optimizer = FlowSGD([p], lr=0.1, momentum=0.9, block_size=2)
    set_gradient(p, generator)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    optimizer.step()
    assert before["param_groups"][0]["step"] == 1
    assert optimizer.state_dict()["param_groups"][0]["step"] == 2


@pytest.mark.bad_input
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_raises_and_changes_nothing(bad, generator):
    p, q = weight((6, 6), generator), weight((6, 6), generator)
    optimizer = FlowSGD([("first", p), ("second", q)], lr=0.1, momentum=0.9, block_size=2)
    set_gradient(p, generator)
    set_gradient(q, generator)
    q.grad[2, 3] = bad
    before = p.detach().clone(), q.detach().clone()
    with pytest.raises(NonFiniteGradientError, match="gradient of second must be finite: 1 of"):
        optimizer.step()
    assert torch.equal(p, before[0]) and torch.equal(q, before[1])
    assert not any(s["momentum_buffer"].any() for s in optimizer.state.values())
    assert optimizer.state_dict()["param_groups"][0]["step"] == 0


@pytest.mark.parametrize("block_size", [2, 3, "dense"])
def test_a_gradient_that_is_not_finite_can_be_skipped_and_counted(block_size, generator):
    p, q = weight((6, 6), generator), weight((6, 6), generator)
    optimizer = FlowSGD([p, q], lr=0.1, momentum=0.9, block_size=block_size, nonfinite="skip")
    for step in range(3):
        set_gradient(p, generator)
        set_gradient(q, generator)
        if step != 1:
            q.grad[2, 3] = torch.nan
        before = p.detach().clone(), q.detach().clone()
        optimizer.step()
        assert not torch.equal(p, before[0])
        assert torch.equal(q, before[1]) == (step != 1)
    assert [int(optimizer.state[r]["skipped"]) for r in (p, q)] == [0, 2]
    assert torch.isfinite(optimizer.state[q]["momentum_buffer"]).all()


@pytest.mark.parametrize("block_size", [2, 3, "dense"])
def test_a_gradient_whose_sum_overflows_is_fine(block_size, generator):
    p = weight((4, 4), generator, torch.float32)
    p.grad = torch.full((4, 4), 1e18) - 1e17 * torch.eye(4)
    FlowSGD([p], lr=1e30, block_size=block_size).step()
    assert check_stiefel(p.detach())


@pytest.mark.bad_input
@pytest.mark.parametrize("block_size", [2, 3, "dense"])
def test_a_gradient_whose_products_overflow_raises_and_changes_nothing(block_size, generator):
    p, q = (weight((4, 4), generator, torch.float32) for _ in range(2))
    p.grad, q.grad = torch.ones(4, 4).triu(), torch.full((4, 4), 3e38)
    before = p.detach().clone(), q.detach().clone()
    optimizer = FlowSGD([("p", p), ("q", q)], lr=0.1, momentum=0.9, block_size=block_size)
    with pytest.raises(NonFiniteGradientError, match="of q must be finite: 16 of .* above 1e\\+18"):
        optimizer.step()
    assert torch.equal(p, before[0]) and torch.equal(q, before[1])
    assert not any(s["momentum_buffer"].any() for s in optimizer.state.values())


@pytest.mark.parametrize("block_size", [2, 5, "dense"])
@pytest.mark.parametrize("retraction", ["exp", "cayley"])
def test_an_angle_above_the_largest_number_leaves_the_weight_orthogonal(
    retraction, block_size, generator
):
    p = weight((12, 12), generator, torch.float64)
    p.grad = 1e99 * randn(12, 12, generator=generator)
    FlowSGD([p], lr=1e300, block_size=block_size, retraction=retraction).step()
    assert orthogonality_error(p.detach()) < 1e-12


@pytest.mark.parametrize("block_size, shape", [(2, (700, 600)), (8, (300, 700))], ids=str)
def test_the_bits_of_a_half_weight_do_not_depend_on_the_number_of_threads(
    block_size, shape, generator
):
    W = orthogonal_(torch.empty(shape, dtype=torch.bfloat16), generator=generator)
    G = randn(*shape, generator=generator).to(W.dtype)
    before, masters = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        p = nn.Parameter(W.clone())
        p.grad = G
        optimizer = FlowSGD([p], lr=0.1, block_size=block_size)
        optimizer.step()
        masters.append(optimizer.state[p]["master"])
    torch.set_num_threads(before)
    assert torch.equal(*masters)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 2},
        {"block_size": 5},
        {"block_size": 12},
        {"block_size": 5, "retraction": "cayley"},
        {"block_size": 12, "retraction": "cayley"},
        {"block_size": 5, "sampler": RoundRobin(5)},
        {"block_size": 2, "sampler": HeavyMatchings()},
        {"block_size": "dense"},
        {"block_size": "dense", "retraction": "cayley"},
        {"block_size": "dense", "retraction": "polar"},
    ],
    ids=str,
)
def test_no_learning_rate_leaves_the_manifold(options, dtype, generator):
    shapes = [(25, 25)]  # the only one of these that the sampler has a family for
    if "sampler" not in options:
        shapes += [(30, 30), (30, 7), (7, 30), (2, 30, 20)]
    for lr in (1e-6, 1.0, 1e3, 1e8, 1e30, 1e300):
        params = [weight(shape, generator, dtype) for shape in shapes]
        for p in params:
            set_gradient(p, generator)
        FlowSGD(params, lr=lr, **options).step()
        for p in params:
            X = as_matrices(p.detach())
            error = orthogonality_error(X).max() / X.shape[-1] ** 0.5
            assert error < (1e-6 if dtype == torch.float32 else 1e-13), (lr, p.shape)


@pytest.mark.bad_input
def test_a_weight_off_the_manifold_is_refused_with_the_way_out(generator):
    with pytest.raises(NotOnManifoldError, match=r"group 0.*\(4, 4\).*begin with.*orthogonal_"):
        FlowSGD([nn.Parameter(torch.randn(4, 4, generator=generator))], lr=0.1)


@pytest.mark.bad_input
def test_a_refused_group_is_not_added(generator):
    optimizer = FlowSGD([weight((4, 4), generator)], lr=0.1)
    with pytest.raises(NotOnManifoldError):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3, 3))]})
    assert len(optimizer.param_groups) == 1


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "shape, error, message",
    [((5,), ShapeError, "two dimensions.*biases"), ((1, 1), BlockSizeError, "nothing to rotate")],
)
def test_weights_that_cannot_turn_are_refused(shape, error, message):
    with pytest.raises(error, match=message):
        FlowSGD([nn.Parameter(torch.ones(shape))], lr=0.1)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"lr": -1.0}, ValueError, "`lr` must be at least 0: got -1.0"),
        ({"momentum": -0.1}, ValueError, "`momentum` must be at least 0"),
        ({"lr": float("inf")}, ValueError, "`lr` must be finite: got inf"),
        ({"nesterov": True}, ValueError, "`nesterov` needs a momentum"),
        ({"block_size": 1}, BlockSizeError, "at least 2, a matching: got 1"),
        ({"block_size": "big"}, BlockSizeError, '"dense" or "auto": got \'big\''),
        ({"block_size": 2.0}, BlockSizeError, "got 2.0"),
        ({"sampler": "best"}, ValueError, "must be 'sweep', 'uniform', or a .Sampler.: got 'best'"),
        ({"retraction": "qr"}, ValueError, "`retraction` must be one of"),
        ({"retraction": "polar", "block_size": 2}, ValueError, "dense step: got block_size=2"),
        ({"sampler": "h_regular", "block_size": 4}, ValueError, r"sampler=HRegular\(block_size=4,"),
        ({"lr": "1e-3"}, TypeError, "`lr` must be a number: got '1e-3', a str"),
        ({"lr": None}, TypeError, "`lr` must be a number: got None"),
        ({"lr": torch.tensor(1j)}, TypeError, "`lr` must be a real number"),
        ({"lr": torch.tensor(-1.0)}, ValueError, "`lr` must be at least 0"),
        ({"momentum": 1.5}, ValueError, "`momentum` must be below 1: got 1.5"),
        ({"maximize": "no"}, TypeError, "`maximize` must be True or False: got 'no'"),
        ({"nesterov": "yes"}, TypeError, "`nesterov` must be True or False"),
        ({"foreach": "no"}, TypeError, "`foreach` must be None, True or False: got 'no'"),
        ({"seed": 1.5}, TypeError, "`seed` must be a whole number.*got 1.5"),
        ({"seed": -1}, ValueError, "`seed` must be a whole number of at least 0.*got -1"),
        ({"seed": 2**63}, ValueError, "`seed` must be a whole number"),
        ({"check_every": -1}, ValueError, "`check_every` must be a whole number.*got -1"),
        ({"check_every": 2.5}, TypeError, "`check_every` must be a whole number.*got 2.5"),
        ({"weight_decay": 0.1}, ValueError, "`weight_decay` must be 0.*nothing to decay"),
    ],
)
def test_options_are_checked(options, error, message, generator):
    with pytest.raises(error, match=message):
        FlowSGD([weight((6, 6), generator)], **({"lr": 0.1} | options))


@pytest.mark.bad_input
def test_weight_decay_of_a_group_is_refused_with_the_reason(generator):
    p, q = weight((6, 6), generator), weight((6, 6), generator)
    optimizer = FlowSGD([{"params": [p], "weight_decay": 0.0}], lr=0.1)
    with pytest.raises(ValueError, match="`weight_decay` must be 0 .*the norm of an orthogonal"):
        optimizer.add_param_group({"params": [q], "weight_decay": 0.01})
    assert len(optimizer.param_groups) == 1


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "make, foreign",
    [(FlowSGD, {"betas": (0.9, 0.99)}), (FlowSGD, {"eps": 1.0}), (FlowAdam, {"momentum": 0.9})],
)
def test_an_option_of_another_optimiser_is_refused_in_a_group(make, foreign, generator):
    (name,) = foreign
    with pytest.raises(ValueError, match=f"`{name}` is not an option of this optimiser"):
        make([{"params": [weight((6, 6), generator)], **foreign}], lr=0.1)


@pytest.mark.bad_input
def test_a_parameter_put_into_a_group_by_hand_is_refused(generator):
    p, q = weight((6, 6), generator), weight((6, 6), generator)
    optimizer = FlowSGD([p], lr=0.1)
    q.grad = torch.ones_like(q)
    for params in ([p, q], [weight((6, 4), generator)]):  # one more, and one of another shape
        optimizer.param_groups[0]["params"] = params
        shape = rf"shape \(6, {params[-1].shape[1]}\) was put into .*add_param_group"
        with pytest.raises(ValueError, match=shape):
            optimizer.step()


def test_whole_numbers_of_numpy_are_whole_numbers(generator):
    options = {"block_size": np.int64(3), "seed": np.uint8(7), "check_every": np.int32(2)}
    p, q = weight((6, 6), generator), weight((6, 6), generator)
    q.data.copy_(p.detach())
    for r, given in ((p, options), (q, {key: int(value) for key, value in options.items()})):
        r.grad = torch.ones_like(r).triu()
        optimizer = FlowSGD([r], lr=0.01, **given)
        optimizer.step()
        assert optimizer.state_dict()["param_groups"][0]["block_size"] == 3
    assert torch.equal(p, q)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "p, error, message",
    [
        (torch.eye(3, dtype=torch.complex64), DtypeError, "W must be a real .*complex64.*Unitary"),
        (torch.eye(3, dtype=torch.int64), DtypeError, "W must be a real .*int64. Cast it"),
        (torch.empty(3, 3, device="meta"), ValueError, "W must have memory: .* meta.*to_empty"),
        (torch.eye(3).to_sparse(), TypeError, "W must be a dense .*sparse_coo.*to_dense"),
    ],
)
def test_weights_of_other_kinds_are_refused_by_name(p, error, message):
    with pytest.raises(error, match=message):
        FlowSGD([("W", nn.Parameter(p, requires_grad=False))], lr=0.1)


@pytest.mark.bad_input
def test_the_weight_of_a_lazy_layer_is_refused_by_name():
    model = nn.LazyLinear(4, bias=False)
    with pytest.raises(ValueError, match="weight must have a shape: .*lazy.*Run the model once"):
        FlowSGD(model.named_parameters(), lr=0.1)


@pytest.mark.bad_input
def test_a_flat_shard_is_not_taken_for_a_bias():
    flat = nn.Parameter(torch.ones(5))
    flat._fsdp_flattened = True  # as FullyShardedDataParallel marks it
    with pytest.raises(TypeError, match="W must be a whole tensor or a DTensor: it is a flat"):
        FlowSGD([("W", flat)], lr=0.1)


def test_samplers_given_as_objects_are_not_shared(generator):
    sampler = HRegular(2, "square")
    p, q = weight((6, 6), generator), weight((8, 8), generator)
    optimizer = FlowSGD([p, q], lr=0.01, block_size=2, sampler=sampler)
    for _ in range(3):
        set_gradient(p, generator)
        set_gradient(q, generator)
        optimizer.step()
    assert check_stiefel(p.detach()) and check_stiefel(q.detach())


def test_what_was_changed_behind_its_back_is_noticed(generator):
    p, q = weight((6, 6), generator), weight((6, 6), generator)
    optimizer = FlowSGD([p, q], lr=0.01, momentum=0.9, block_size=2)
    for r in (p, q):
        set_gradient(r, generator)
    optimizer.step()
    p.data, q.data = p.data.float(), q.data.float()  # as model.float() does
    for r in (p, q):
        r.grad = None
        r.grad = torch.randn(6, 6, generator=generator)
    optimizer.step()
    assert optimizer.state[p]["momentum_buffer"].dtype == torch.float32
    assert check_stiefel(p.detach()) and check_stiefel(q.detach())
    optimizer.param_groups[0]["params"] = [p]
    before = q.detach().clone()
    optimizer.step()
    assert torch.equal(q, before)
    optimizer.param_groups[0]["sampler"] = RoundRobin()
    optimizer.step()
    optimizer.param_groups[0].update(sampler=HRegular(3), block_size=3)
    optimizer.step()
    assert type(optimizer.state[p]["samplers"][0]) is HRegular


@pytest.mark.parametrize("block_size", [2, 4, "dense"])
def test_the_momentum_moves_where_the_memory_has_no_such_view(block_size, generator):
    p = weight((8, 4, 3, 3), generator)
    optimizer = FlowSGD([p], lr=0.01, momentum=0.9, block_size=block_size)
    view = MatrixView.of(p)
    p.data = p.data.to(memory_format=torch.channels_last)  # after the view was chosen
    expected = torch.zeros_like(view(p.detach()))
    for step in range(3):
        set_gradient(p, generator)
        X, expected = view(p.detach()).clone(), 0.9 * expected + view(p.grad)
        if block_size == "dense":
            expected = tangent_project(X, expected)
        else:
            R = scipy_expm(-0.01 * estimate(X[0], expected[0], block_size, 0, step))
            expected = R @ expected
        optimizer.step()
    assert_close("momentum", expected, view(optimizer.state[p]["momentum_buffer"]))
    assert check_stiefel(as_matrices(p.detach()))


@pytest.mark.bad_input
def test_expanded_and_reshaped_weights_are_refused(generator):
    eye = torch.eye(4).expand(3, 4, 4)
    with pytest.raises(ShapeError, match="memory for each of its entries"):
        FlowSGD([nn.Parameter(eye)], lr=0.1)
    p = weight((8, 4), generator)
    optimizer = FlowSGD([p], lr=0.1)
    p.data = p.data.mT.contiguous()
    set_gradient(p, generator)
    with pytest.raises(ShapeError, match=r"must keep its shape \(8, 4\): it is \(4, 8\)"):
        optimizer.step()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("shape", [(7, 5), (4, 6), (2, 6, 6)], ids=str)
def test_uniform_matchings_are_those_of_the_reference(shape, momentum, generator):
    p = weight(shape, generator)
    optimizer = FlowSGD([p], lr=0.01, momentum=momentum, block_size=2, sampler="uniform", seed=5)
    view, update = MatrixView.of(p), Update(0.01, seed=5, momentum=momentum, independent=True)
    X = view(p.detach()).clone()
    M = torch.zeros_like(X) if momentum else None
    for step in range(4):
        set_gradient(p, generator)
        X, M = step_pairs(X, view(p.grad), M, torch.tensor(step), update)
        optimizer.step()
        assert_close("X", X, view(p.detach()))


def test_a_sweep_meets_every_plane_once_and_uniform_steps_are_independent():
    d, seeds = 4, 500
    repeated = {False: 0, True: 0}
    for independent in repeated:
        for seed in range(seeds):
            first, second = (
                matching_at(d, seed, 0, torch.tensor(t), independent=independent)[0] for t in (0, 1)
            )
            same = {frozenset(q) for q in first.tolist()} == {frozenset(q) for q in second.tolist()}
            repeated[independent] += same
    assert repeated[False] == 0  # three matchings, each once in a sweep of three
    # Independent uniform draws repeat with probability 1/3; six standard deviations are 63.
    assert abs(repeated[True] - seeds / 3) < 63


def test_sampling_that_fails_for_one_weight_moves_none(generator):
    p, q = weight((9, 9), generator), weight((10, 10), generator)
    optimizer = FlowSGD([p, q], lr=0.1, momentum=0.9, block_size=3, sampler=RoundRobin(3))
    for r in (p, q):
        set_gradient(r, generator)
    before = p.detach().clone()
    with pytest.raises(FamilyError):
        optimizer.step()
    assert torch.equal(p, before)
    assert not optimizer.state[p]["momentum_buffer"].any()
    alone = FlowSGD([p], lr=0.1, momentum=0.9, block_size=3, sampler=RoundRobin(3))
    q.grad = None
    optimizer.step()  # goes on as if the failed step had not been
    after, p.data = p.detach().clone(), before
    alone.step()
    assert torch.equal(p, after)
