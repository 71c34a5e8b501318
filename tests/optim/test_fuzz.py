"""Steps of random weights, options, gradients and rates: four promises, or a documented error."""

import copy
import time

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn

from skewflow.errors import SkewflowError
from skewflow.geometry import orthogonality_error
from skewflow.geometry.matrices import as_matrices
from skewflow.nn import orthogonal_
from skewflow.optim import AngleSGD, FlowAdam, FlowSGD
from skewflow.samplers import (
    Balanced,
    HeavyMatchings,
    HRegular,
    Optimal,
    RelabelledRoundRobin,
    RoundRobin,
)

LARGEST_ERROR = {torch.float64: 1e-12, torch.float32: 1e-5}
HALVES = (torch.bfloat16, torch.float16)

shapes = st.one_of(
    st.tuples(st.integers(2, 12), st.integers(1, 12)),
    st.tuples(st.integers(1, 3), st.integers(2, 7), st.integers(1, 7)),
    st.sampled_from([(4, 2, 3, 3), (9, 1, 2, 2), (3, 3, 1, 1), (2, 2, 1, 2, 2)]),
)
rates = st.one_of(st.sampled_from([0.0, 1e-3, 0.1, 1.0]), st.floats(1e-300, 1e300))
sizes = st.sampled_from([2, 3, 4, 7, 16, "dense", "auto"])
kinds = [RoundRobin, RelabelledRoundRobin, HRegular, Optimal, Balanced]
samplers = st.sampled_from(["sweep"] * 6 + ["uniform", *kinds, lambda s: HeavyMatchings()])


@st.composite
def options(draw):
    """Of three optimisers; some of them contradict each other."""
    size, sampler = draw(sizes), draw(samplers)
    common = {
        "lr": draw(rates),
        "block_size": size,
        "sampler": sampler(size if isinstance(size, int) else 2) if callable(sampler) else sampler,
        "retraction": draw(st.sampled_from(["auto", "exp", "cayley", "polar"])),
        "maximize": draw(st.booleans()),
        "seed": draw(st.sampled_from([0, 7, 2**63 - 1])),
        "check_every": draw(st.sampled_from([0, 1, 2, 256])),
        "nonfinite": draw(st.sampled_from(["raise", "skip"])),
        "foreach": draw(st.sampled_from([None, False])),
    }
    make = draw(st.sampled_from([FlowSGD, FlowSGD, FlowAdam, FlowAdam, AngleSGD]))
    if make is not FlowAdam:
        common["momentum"] = draw(st.sampled_from([0.0, 0.5, 0.99]))
        common["nesterov"] = common["momentum"] > 0 and draw(st.booleans())
    if make is FlowSGD:
        return FlowSGD, {**common, "num_draws": draw(st.sampled_from([1, 1, 1, 2, 5]))}
    if make is AngleSGD:
        return AngleSGD, {**common, "angle": draw(st.sampled_from(["rms", "spectral"]))}
    betas = draw(st.sampled_from([(0.9, 0.999), (0.0, 0.0), (0.5, 0.99999)]))
    return FlowAdam, {**common, "betas": betas, "eps": draw(st.sampled_from([1e-8, 1e-30, 1.0]))}


kinds = st.tuples(
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    shapes,
    st.sampled_from(["contiguous", "turned", "apart"]),
    st.integers(0, 1 << 20),
)
weights = st.lists(kinds, min_size=1, max_size=2)


def weight(dtype, shape, layout, seed):
    """A weight in one of the layouts that tensors have."""
    W = orthogonal_(torch.empty(shape, dtype=dtype), generator=torch.Generator().manual_seed(seed))
    if layout == "turned":
        W = W.transpose(0, -1).contiguous().transpose(0, -1)
    elif layout == "apart":
        whole = torch.zeros(*shape[:-1], 2 * shape[-1], dtype=dtype)
        whole[..., ::2] = W
        W = whole[..., ::2]
    return nn.Parameter(W)


def gradient(shape, kind, size, generator):
    """A gradient of one of many kinds."""
    G = torch.zeros(shape, dtype=torch.float64)
    if kind == "one entry":
        G.view(-1)[int(torch.randint(G.numel(), (), generator=generator))] = size
    elif kind != "zero":
        G = size * torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind in ("nan", "inf"):
        G.view(-1)[-1] = float(kind)
    return G


gradients = st.tuples(
    st.sampled_from(["normal"] * 5 + ["zero", "one entry", "nan", "inf"]),
    st.one_of(st.sampled_from([1.0, 1e-3]), st.floats(1e-310, 1e120)),
)


def signs(p):
    X = as_matrices(p.detach().double())
    return torch.linalg.slogdet(X).sign if X.shape[-1] == X.shape[-2] else None


def is_equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(is_equal, a, b))
    return a == b


def check_point(p, state, sign):
    """The weight, or its master, is finite and orthogonal, and has the sign of before."""
    X = state.get("master", p) if p.dtype in HALVES else p
    X = as_matrices(X.detach().view(p.shape))
    assert torch.isfinite(X).all()
    error = orthogonality_error(X.double()) / X.shape[-1] ** 0.5
    assert error.max() < LARGEST_ERROR.get(X.dtype, 5e-2), error
    if sign is not None and p.dtype not in HALVES:
        assert torch.equal(signs(p), sign)


def are_untouched(params, grads):
    """Whether the gradients hold what they held before, NaN too."""
    pairs = zip(params, grads, strict=True)
    return all(torch.equal(p.grad.view(torch.uint8), G.view(torch.uint8)) for p, G in pairs)


def check(kinds_of_weights, make, given_options, steps):
    params, twins = ([weight(*kind) for kind in kinds_of_weights] for _ in range(2))
    try:
        optimizer = make(params, **given_options)
    except (ValueError, SkewflowError) as error:
        assert len(str(error)) > 40  # the rule, the value, the way out
        return
    resumed = make(twins, **given_options)
    before, generator = [signs(p) for p in params], torch.Generator().manual_seed(1)
    for step in steps:
        grads = []
        for p, twin, (kind, size) in zip(params, twins, step, strict=False):
            G = gradient(p.shape, kind, size, generator).to(p.dtype)
            p.grad, twin.grad = G.clone(), G.clone()
            grads.append(G)
        points = [p.detach().clone() for p in params]
        state = copy.deepcopy(optimizer.state_dict())
        try:
            optimizer.step()
        except SkewflowError as error:
            assert len(str(error)) > 40
            assert is_equal([p.detach() for p in params], points)
            assert is_equal(optimizer.state_dict(), state)
            assert are_untouched(params, grads)
            return
        assert are_untouched(params, grads)
        for p, sign in zip(params, before, strict=True):
            check_point(p, optimizer.state[p], sign)
        # A run that is saved and loaded at every step.
        state = copy.deepcopy(resumed.state_dict())
        resumed = make(twins, **{**given_options, "lr": 0.5})
        resumed.load_state_dict(state)
        resumed.step()
        assert is_equal(twins, params)
    assert is_equal(optimizer.state_dict()["state"], resumed.state_dict()["state"])


def fuzz(examples, seconds):
    """Check random cases until there are enough of them, or so much time of the CPU is used."""
    end = time.process_time() + seconds  # a busy machine has to check as many

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(weights, options(), st.lists(st.tuples(gradients, gradients), min_size=1, max_size=4))
    def run(kinds, flow, steps):
        if time.process_time() < end:
            check(kinds, *flow, steps)

    run()


def test_random_steps_keep_their_promises():
    fuzz(examples=150, seconds=60)  # 10, and compilation where the cache is empty


@pytest.mark.slow
def test_many_random_steps_keep_their_promises():
    fuzz(examples=20_000, seconds=900)
