"""What "auto" decides, from what, and that it says so."""

import copy

import pytest
import torch
from torch import nn

from helpers import randn
from skewflow.geometry import orthogonality_error
from skewflow.nn import orthogonal_
from skewflow.optim import FlowAdam, FlowSGD
from skewflow.optim._auto import LOOKS, Auto, choose

COSTS = {2: 0.001, 16: 0.002, 64: 0.004}


def never(size):
    raise AssertionError(f"blocks of {size} were tried")


@pytest.mark.parametrize(
    "exact, between, memory, size",
    [
        (2.0, 1.0, 1.0, 512),  # blocks of 64 see an eighth of the planes in a third of the time
        (100.0, 1.0, 1.0, 64),  # in a hundredth of it
        (2.0, 1.0, 10.0, 64),  # momentum keeps what they leave
        (0.1, 1.0, 10.0, 512),  # but an exact step adds little
        (2.0, 1.0, 100.0, 16),  # the cheapest that leaves nothing
        (1.0, 0.001, 1.0, 64),
    ],
)
def test_the_choice_follows_costs_and_noise(exact, between, memory, size):
    costs = {**COSTS, 512: exact}
    assert choose(512, exact, between, memory, costs.__getitem__).size == size


def test_an_exact_step_is_timed_beside_the_blocks():
    costs = {**COSTS, 512: 0.1}  # the clock had been disturbed
    assert choose(512, 100.0, 1.0, 1.0, costs.__getitem__).size == 512


def test_blocks_that_cannot_win_are_not_tried():
    assert choose(512, 2.0, 1.0, 1.0, never).size == 512
    assert choose(2, 1e9, 1e-9, 1.0, never).size == 2


def made(d, generator, flow=FlowSGD, **options):
    p = nn.Parameter(orthogonal_(torch.empty(d, d), generator=generator))
    return p, flow([p], lr=1e-3, **options)


def run(p, optimizer, steps, generator):
    for _ in range(steps):
        p.grad = randn(*p.shape, generator=generator, dtype=torch.float32)
        optimizer.step()


@pytest.fixture
def ticking(monkeypatch):
    """Exact steps seem to take a second, blocks a thousandth, between two as much as is set."""
    seconds = {"between": 1e-3}

    def seconds_of(step, device):
        return 1.0 if step.__self__.param_groups[0]["block_size"] == "dense" else 1e-3

    monkeypatch.setattr("skewflow.optim._clock.Clock.step", lambda self: 1.0)
    monkeypatch.setattr("skewflow.optim._clock.Clock.between", lambda self: seconds["between"])
    monkeypatch.setattr("skewflow.optim._auto.seconds_of", seconds_of)
    return seconds


def test_it_decides_before_the_third_step_and_may_change_its_mind_at_the_64th(ticking, generator):
    p, optimizer = made(100, generator)
    ticking["between"] = 0.1
    run(p, optimizer, LOOKS[0] - 1, generator)
    assert "auto_size" not in optimizer.state[p]
    assert "exact steps, nothing is measured before step 3" in optimizer.explain()
    run(p, optimizer, 1, generator)
    assert optimizer.state[p]["auto_size"] == 64
    assert "blocks of 64 rows, an exact step takes 1e+03 ms, blocks of 64 rows 1 ms, and 1e+02" in (
        optimizer.explain()
    )
    ticking["between"] = 100.0
    run(p, optimizer, LOOKS[1] - LOOKS[0], generator)
    assert optimizer.state[p]["auto_size"] == 100
    assert "blocks could not make up for what they leave out" in optimizer.explain()
    assert orthogonality_error(p.detach()) < 1e-5


def test_a_saved_choice_is_kept(ticking, generator):
    p, optimizer = made(100, generator)
    ticking["between"] = 0.1
    run(p, optimizer, 5, generator)
    saved = copy.deepcopy(optimizer.state_dict())
    q, again = made(100, generator)
    q.data.copy_(p.detach())
    again.load_state_dict(saved)
    copied = copy.deepcopy(again)
    ticking["between"] = 100.0
    run(q, again, LOOKS[1], generator)
    assert again.state[q]["auto_size"] == 64
    assert "blocks of 64 rows, as it was saved" in again.explain()
    assert "blocks of 64 rows" in copied.explain() or "exact steps" in copied.explain()


def test_the_same_bits_are_had_without_a_clock(monkeypatch, generator):
    monkeypatch.setattr(Auto, "begin", never)
    torch.use_deterministic_algorithms(True)
    try:
        p, optimizer = made(100, generator)
        run(p, optimizer, 4, generator)
        assert "blocks of 2 rows, by the table" in optimizer.explain()
    finally:
        torch.use_deterministic_algorithms(False)
    for options in ({"sampler": "round_robin"}, {"retraction": "cayley"}, {"flow": FlowAdam}):
        p, optimizer = made(100, generator, **options)
        run(p, optimizer, 4, generator)
        assert "by the table" in optimizer.explain()


def test_what_is_too_large_for_an_exact_step_begins_with_blocks(monkeypatch, generator):
    monkeypatch.setitem(__import__("skewflow").optim._auto.MOST_OPERATIONS, "cpu", 1e3)
    p, optimizer = made(100, generator)
    run(p, optimizer, 4, generator)
    assert "blocks of 2 rows, an exact step would take 8e+06 operations" in optimizer.explain()


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


def test_explain_tells_what_was_asked_for_and_what_came_in_factors(generator):
    p, optimizer = made(40, generator, block_size=8)
    assert optimizer.explain() == (
        "parameter 0 of group 0 (40 x 40 on cpu): blocks of 8 rows, so it was asked for."
    )
    p, optimizer = made(40, generator)
    A, B = (randn(40, 3, generator=generator, dtype=torch.float32) for _ in range(2))
    optimizer.step(factors={p: (A, B)})
    assert optimizer.explain().endswith("factored steps. Its gradient came in factors of rank 3.")
