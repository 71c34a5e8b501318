"""What "auto" chooses, and that it says so."""

import math

import pytest
import torch
from torch import nn

from helpers import numbers_of, randn, reasons_of
from skewflow.geometry import orthogonality_error
from skewflow.nn import orthogonal_
from skewflow.optim import AngleSGD, FlowAdam, FlowSGD
from skewflow.optim.auto import MOST_OPERATIONS, auto_choice
from skewflow.optim.executors.dense_matrix import DenseMatrix
from skewflow.samplers import HeavyMatchings, Optimal, Uniform


def made(d, generator, flow=FlowSGD, **options):
    p = nn.Parameter(orthogonal_(torch.empty(d, d), generator=generator))
    return p, flow([p], lr=1e-3, **options)


def run(p, optimizer, steps, generator):
    for _ in range(steps):
        p.grad = randn(*p.shape, generator=generator, dtype=torch.float32)
        optimizer.step()


def test_small_weights_take_exact_steps_to_the_nearest_point(generator):
    p, optimizer = made(40, generator, momentum=0.9)
    q, polar = made(40, generator, momentum=0.9, block_size="dense", retraction="polar")
    q.data.copy_(p.detach())
    state = generator.get_state()
    run(p, optimizer, 5, generator)
    generator.set_state(state)
    run(q, polar, 5, generator)
    assert torch.equal(p, q)
    assert reasons_of(optimizer) == (
        "parameter 0 of group 0 (40 x 40 on cpu): exact steps (polar), for which lr means the same "
        "at every size; they take 5e+05 operations."
    )


def test_an_exponential_that_is_asked_for_is_taken(generator):
    ends = []
    for size in ("auto", "dense"):
        p, optimizer = made(40, generator.manual_seed(1), block_size=size, retraction="exp")
        run(p, optimizer, 3, generator)
        ends.append(p.detach())
    assert torch.equal(*ends)


def test_one_matrix_on_a_cpu_has_a_step_of_its_own(monkeypatch, generator):
    taken = []
    step = DenseMatrix.step
    monkeypatch.setattr(DenseMatrix, "step", lambda *args: taken.append(step(*args)))
    p, optimizer = made(20, generator, momentum=0.9)
    run(p, optimizer, 3, generator)
    assert len(taken) == 3
    q, nesterov = made(20, generator, momentum=0.9, nesterov=True)
    run(q, nesterov, 3, generator)
    many = nn.Parameter(torch.stack([p.detach(), q.detach()]))
    run(many, FlowSGD([many], lr=1e-3), 3, generator)
    assert len(taken) == 3
    exponential = FlowSGD([p], lr=1e-3, block_size="dense")
    run(p, exponential, 2, generator)
    assert len(taken) == 5


KINDS = [torch.device(kind) for kind in ("cpu", "cuda", "mps")]


@pytest.mark.parametrize("flow", [FlowSGD, FlowAdam])
def test_auto_means_exact_steps_of_every_size_on_every_device(flow, generator):
    """Blocks turn by other angles at the same learning rate."""
    _, optimizer = made(4, generator, flow=flow)
    (group,) = optimizer.param_groups
    sizes = [(1, d, d) for d in (2, 40, 630, 631, 4096)] + [(300, 2000, 500)]
    assert {auto_choice(n, kind, group).size for n in sizes for kind in KINDS} == {"dense"}


def test_flow_adam_takes_the_exponential(generator):
    """Rows without a gradient turn by many radians, for which a polar step is cut as a whole."""
    p, optimizer = made(40, generator, flow=FlowAdam)
    q, exact = made(40, generator, flow=FlowAdam, block_size="dense", retraction="exp")
    q.data.copy_(p.detach())
    for _ in range(3):
        p.grad = randn(40, 40, generator=generator, dtype=torch.float32)
        p.grad[20:] = 1e-9 * p.grad[20:]
        q.grad = p.grad.clone()
        optimizer.step()
        exact.step()
    assert torch.equal(p, q)


def test_samplers_draw_pairs_unless_a_size_is_given(generator):
    p, optimizer = made(40, generator, sampler="uniform")
    run(p, optimizer, 2, generator)
    assert "blocks of 2 rows, drawn by its sampler" in reasons_of(optimizer)
    (group,) = optimizer.param_groups
    assert {auto_choice((1, 700, 700), kind, group).size for kind in KINDS} == {2}


def test_an_angle_means_the_same_for_blocks_so_auto_goes_by_the_price(monkeypatch, generator):
    assert MOST_OPERATIONS == {"cpu": 2e9, "cuda": 1e11}
    p, optimizer = made(40, generator, flow=AngleSGD)
    assert "exact steps (polar), which take only 5e+05 operations" in reasons_of(optimizer)
    (group,) = optimizer.param_groups
    assert auto_choice((1, 40, 40), torch.device("mps"), group).size == 2
    monkeypatch.setitem(MOST_OPERATIONS, "cpu", 8 * 40.0**3 - 1)
    q, pairs = made(40, generator, flow=AngleSGD, block_size=2)
    q.data.copy_(p.detach())
    state = generator.get_state()
    run(p, optimizer, 3, generator)
    generator.set_state(state)
    run(q, pairs, 3, generator)
    assert torch.equal(p, q)
    assert "blocks of 2 rows, the largest size that costs at most twice SGD; an exact step" in (
        reasons_of(optimizer)
    )


@pytest.mark.parametrize("options", [{"sampler": "uniform"}, {"retraction": "cayley"}], ids=str)
def test_what_only_blocks_can_do_cheaply_has_blocks_of_an_angle(options, generator):
    p, optimizer = made(40, generator, flow=AngleSGD, **options)
    run(p, optimizer, 2, generator)
    assert "blocks of 2 rows, the largest size" in reasons_of(optimizer)
    assert orthogonality_error(p.detach()) < 1e-5


def test_the_report_is_that_of_the_step_that_is_taken(generator):
    p, optimizer = made(8, generator)
    optimizer.param_groups[0]["lr"] = 50.0
    p.grad = randn(8, 8, generator=generator, dtype=torch.float32)
    (found,) = numbers_of(optimizer.report())
    assert found.block_size == 8
    assert found.largest_angle == pytest.approx(math.atan(math.sqrt(6.5)))


def test_factors_with_momentum_make_a_gradient_where_their_window_is_too_wide(generator):
    p, optimizer = made(40, generator, momentum=0.9)
    q, plain = made(40, generator, momentum=0.9)
    q.data.copy_(p.detach())
    for rank in (5, 5, 1):  # what has begun one way goes on
        A, B = (randn(40, rank, generator=generator, dtype=torch.float32) for _ in range(2))
        optimizer.step(factors={p: (A, B)})
        assert p.grad is None and "factors_a" not in optimizer.state[p]
        q.grad = A @ B.mT
        plain.step()
    assert torch.allclose(p, q, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_factors_of_high_rank_take_exact_steps_also_of_large_weights(
    monkeypatch, momentum, generator
):
    monkeypatch.setitem(MOST_OPERATIONS, "cpu", 1.0)
    options = {"flow": AngleSGD, "momentum": momentum, "angle": "rms"}
    p, optimizer = made(40, generator, **options)
    q, exactly = made(40, generator, block_size="dense", retraction="polar", **options)
    q.data.copy_(p.detach())
    for _ in range(3):
        A, B = (randn(40, 30, generator=generator, dtype=torch.float32) for _ in range(2))
        optimizer.step(factors={p: (A, B)})
        q.grad = A @ B.mT
        exactly.step()
    if momentum == 0:  # else the window of factors forgets what is old
        assert torch.allclose(p, q, atol=1e-6)
    assert "exact steps, since its gradient came in factors of rank" in reasons_of(optimizer)


def test_explain_tells_what_was_asked_for_and_what_came_in_factors(generator):
    p, optimizer = made(40, generator, block_size=8)
    assert reasons_of(optimizer) == (
        "parameter 0 of group 0 (40 x 40 on cpu): blocks of 8 rows, the size of its group."
    )
    p, optimizer = made(40, generator)
    A, B = (randn(40, 3, generator=generator, dtype=torch.float32) for _ in range(2))
    optimizer.step(factors={p: (A, B)})
    assert reasons_of(optimizer).endswith(
        "factored steps, since its gradient came in factors of rank 3."
    )
    run(p, optimizer, 1, generator)
    assert "exact steps" in reasons_of(optimizer)


@pytest.mark.parametrize(
    "options, line",
    [
        ({"sampler": Uniform(4)}, "blocks of 4 rows, drawn by Uniform(block_size=4)."),
        ({"sampler": Uniform(4), "block_size": 4}, "blocks of 4 rows, drawn by"),
        ({"sampler": Uniform(64)}, "exact steps (polar), since it has no more than 64 rows."),
        ({"sampler": HeavyMatchings()}, "blocks of 2 rows, drawn by HeavyMatchings("),
        ({"block_size": 64}, "exact steps (exp), since it has no more than 64 rows."),
        ({"block_size": "dense"}, "exact steps (exp), the size of its group."),
        ({"sampler": "uniform"}, "blocks of 2 rows, drawn by its sampler"),
    ],
    ids=str,
)
def test_explain_names_the_step_that_is_taken(options, line, generator):
    p, optimizer = made(40, generator, **options)
    assert line in reasons_of(optimizer)
    p.grad = randn(40, 40, generator=generator, dtype=torch.float32)
    (report,) = numbers_of(optimizer.report())
    before = p.detach().clone()
    optimizer.step()
    turned = p.detach() @ before.mT
    assert (report.block_size == 40) == ("exact" in line)
    if report.block_size != 40:  # as many other rows enter a row as its block has
        others = (turned.abs() > 1e-6).sum(1)
        assert int(others.max()) == report.block_size


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "options, message",
    [
        ({"block_size": 2, "sampler": Uniform(4)}, "must agree: got block_size=2 and Uniform.*4"),
        ({"block_size": 3, "sampler": HeavyMatchings()}, "must agree: got block_size=3"),
        ({"block_size": "dense", "sampler": Optimal(2)}, "exact steps have none.*Optimal"),
        ({"block_size": "dense", "sampler": "uniform"}, "exact steps have none"),
        ({"block_size": "dense", "sampler": Uniform(4)}, "exact steps have none"),
    ],
    ids=str,
)
def test_a_sampler_and_a_block_size_that_contradict_each_other_are_refused(
    options, message, generator
):
    with pytest.raises(ValueError, match=message):
        made(40, generator, **options)


def test_a_run_resumed_after_a_gradient_of_zeros_takes_the_same_steps(generator):
    ends = []
    for resume in (False, True):
        p, optimizer = made(40, torch.Generator().manual_seed(1), momentum=0.9)
        factors = torch.Generator().manual_seed(2)
        for step in range(3):
            rank = 20 if step == 0 else 1  # the first is formed, and so are the others from then on
            A, B = (randn(40, rank, generator=factors, dtype=torch.float32) for _ in range(2))
            optimizer.step(factors={p: (A * (step > 0), B)})
            if resume:
                state = optimizer.state_dict()
                optimizer = FlowSGD([p], lr=1e-3, momentum=0.9)
                optimizer.load_state_dict(state)
        assert "factors_a" not in optimizer.state[p]
        ends.append(p.detach())
    assert torch.equal(*ends)
