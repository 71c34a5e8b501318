"""FlowAdam: the step against its formula, stationary points, state, convergence."""

import copy

import pytest
import torch
from torch import nn

from helpers import assert_close, randn, random_stiefel, scipy_expm
from skewflow.geometry import haar, orthogonality_error, project, tangent_project
from skewflow.geometry.matrices import MatrixView, as_matrices
from skewflow.kernels.exact_polar.cpu import adapted_polar_step
from skewflow.kernels.exact_step import exact_step
from skewflow.kernels.permutation import matching_at, order_at
from skewflow.kernels.tangent import tangent_part
from skewflow.nn import orthogonal_
from skewflow.optim import FlowAdam, FlowSGD
from skewflow.samplers import HRegular, RelabelledRoundRobin
from skewflow.tournaments import EdgeWeights, Partition, Tournament, block_sizes, edge_probability

BETAS, EPS = (0.8, 0.95), 1e-4


def weight(shape, generator, dtype=torch.float64):
    return nn.Parameter(orthogonal_(torch.empty(shape, dtype=dtype), generator=generator))


def drawn(X, D, s, stream, step):
    """The estimate of Omega that a step draws, as a (d, d) matrix."""
    d = X.shape[0]
    if isinstance(s, str):
        return D @ X.mT - X @ D.mT
    if s == 2:
        pairs, alone = matching_at(d, 0, stream, torch.tensor(step))
        partition = Partition.of([*pairs.tolist(), *[[i] for i in alone.tolist()]])
    else:
        order = order_at(d, 0, stream, torch.tensor(step))
        partition = Partition.from_order(order, block_sizes(d, s))
    return Tournament(partition, float(1 / edge_probability(d, s))).dense(EdgeWeights(X, D))


@pytest.mark.parametrize("shape", [(8, 8), (9, 5), (5, 9), (2, 7, 4), (8, 3, 3, 3)], ids=str)
@pytest.mark.parametrize("s", [2, 3, "dense", "auto", "polar"])
def test_a_step_is_adams_on_the_planes_it_draws(shape, s, generator):
    """Those of exact steps are all planes; "polar" goes to the nearest point."""
    p = weight(shape, generator)
    how = {"block_size": "dense", "retraction": "polar"} if s == "polar" else {"block_size": s}
    optimizer = FlowAdam([p], lr=0.01, betas=BETAS, eps=EPS, **how)
    X = as_matrices(p.detach()).clone()
    m, v = torch.zeros_like(X), torch.zeros(X.shape[:2], dtype=X.dtype)
    thin = 2 * X.shape[2] < X.shape[1]
    for t in range(1, 4):
        p.grad = randn(*p.shape, generator=generator)
        G = MatrixView.of(p)(p.grad)
        m = BETAS[0] * m + (1 - BETAS[0]) * G
        v = BETAS[1] * v + (1 - BETAS[1]) * G.square().mean(-1)
        D = m / (1 - BETAS[0] ** t)
        exact = isinstance(s, str)
        if exact:
            m = tangent_project(X, m)
        root = (v / (1 - BETAS[1] ** t)).sqrt() + EPS
        for b in range(len(X)):
            W = drawn(X[b], D[b], s, b, t - 1)
            square = root[b].square()
            if exact and thin:
                W = W / square.mean().sqrt()
            else:
                W = W / ((square[:, None] + square) / 2).sqrt()
            if s == "polar":
                X[b] = project(X[b] - 0.01 * W @ X[b])
                continue
            R = scipy_expm(-0.01 * W)
            X[b] = R @ X[b]
            if not exact:
                m[b] = R @ m[b]
        optimizer.step()
        assert_close("X", X, as_matrices(p.detach()), factor=10)


@pytest.mark.parametrize("lr", [1e-6, 1e-3, 1.0, 1e3, 1e38])
@pytest.mark.parametrize("shape", [(12, 12), (12, 9), (20, 4), (3, 10, 10)], ids=str)
def test_exact_steps_of_auto_stay_orthogonal_at_any_rate(lr, shape, generator):
    p = weight(shape, generator, torch.float32)
    optimizer = FlowAdam([p], lr=lr)
    for size in (1.0, 1e-12, 1e12):
        before = p.detach().clone()
        p.grad = size * randn(*shape, generator=generator, dtype=torch.float32)
        optimizer.step()
        assert orthogonality_error(p.detach()).max() < 1e-6
        assert lr < 1e-3 or not torch.allclose(p, before, atol=1e-6)


@pytest.mark.parametrize("block_size", [2, 4, "dense", "auto"])
def test_it_rests_where_the_loss_does_though_the_gradient_does_not_vanish(block_size):
    scales = torch.linspace(1, 9, 8, dtype=torch.float64).diag()
    p = nn.Parameter(torch.eye(8, dtype=torch.float64)[:, :3].clone())  # eigenvectors
    optimizer = FlowAdam([p], lr=0.1, block_size=block_size)
    for _ in range(20):
        p.grad = -2 * scales @ p.detach()
        optimizer.step()
    assert (p.detach() - torch.eye(8, dtype=torch.float64)[:, :3]).abs().max() < 1e-12


def test_rows_of_very_different_weight_are_no_obstacle(generator):
    A = torch.logspace(0, 2, 32)[:, None]
    start, target = (haar(32, generator=generator, special=True) for _ in range(2))
    losses = {}
    for make in (FlowAdam, FlowSGD):
        best = float("inf")
        for lr in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1):
            p = nn.Parameter(start.clone())
            optimizer = make([p], lr=lr, block_size="dense")
            for t in range(200):
                optimizer.param_groups[0]["lr"] = lr * (1 - t / 200)
                optimizer.zero_grad()
                loss = (A * (p - target)).square().sum() / 2
                loss.backward()
                optimizer.step()
            best = min(best, loss.item())
        losses[make] = best
        assert orthogonality_error(p.detach()) < 1e-4
    assert losses[FlowAdam] < 0.1 * losses[FlowSGD]


@pytest.mark.parametrize("block_size", [2, 3, "dense"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_resumed_run_gives_the_same_bits(block_size, dtype, tmp_path):
    def run(resume):
        start, gradients = torch.Generator().manual_seed(5), torch.Generator().manual_seed(6)
        params = [weight((9, 5), start, dtype), weight((6, 6), start, dtype)]
        make = lambda: FlowAdam(params, lr=0.01, block_size=block_size)  # noqa: E731
        optimizer = make()
        for step in range(8):
            if resume and step == 4:
                torch.save({"o": optimizer.state_dict(), "p": params}, tmp_path / "state.pt")
                saved = torch.load(tmp_path / "state.pt", weights_only=True)
                params = [nn.Parameter(p.detach().clone()) for p in saved["p"]]
                optimizer = make()
                optimizer.load_state_dict(saved["o"])
            for p in params:
                p.grad = randn(*p.shape, generator=gradients, dtype=p.dtype)
            optimizer.step()
        return params

    assert all(torch.equal(p, q) for p, q in zip(run(False), run(True), strict=True))


def test_samplers_on_the_host_divide_too(generator):
    p = weight((8, 8), generator)
    optimizer = FlowAdam([p], lr=0.01, block_size=2, sampler=HRegular(2))
    for _ in range(5):
        p.grad = randn(8, 8, generator=generator) * torch.logspace(-3, 3, 8)[:, None]
        optimizer.step()
    assert orthogonality_error(p.detach()) < 1e-12


def test_a_bad_gradient_leaves_the_moments_alone(generator):
    p = weight((6, 6), generator)
    optimizer = FlowAdam([p], lr=0.01, block_size=2, nonfinite="skip")
    p.grad = randn(6, 6, generator=generator)
    optimizer.step()
    before = optimizer.state[p]["exp_avg_sq"].clone()
    p.grad[0, 0] = torch.nan
    optimizer.step()
    assert torch.equal(optimizer.state[p]["exp_avg_sq"], before)
    assert int(optimizer.state[p]["skipped"]) == 1


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "options, message",
    [
        ({"betas": (1.0, 0.9)}, r"`betas` must lie in \[0, 1\): got 1.0 at place 0"),
        ({"betas": (0.9, -0.1)}, "got -0.1 at place 1"),
        ({"eps": 0.0}, "`eps` must be above 0.*got 0.0"),
        ({"eps": float("inf")}, "`eps` must be finite: got inf"),
        ({"betas": 0.9}, r"`betas` must be two numbers, as \(0.9, 0.999\): got 0.9"),
        ({"weight_decay": 0.1}, "`weight_decay` must be 0"),
    ],
)
def test_options_are_checked(options, message, generator):
    with pytest.raises(ValueError, match=message):
        FlowAdam([weight((6, 6), generator)], lr=0.1, **options)


def test_a_weight_that_joins_late_is_corrected_from_its_own_start(generator):
    ends = []
    for late in (0, 50):
        p, q = weight((6, 6), torch.Generator().manual_seed(1)), weight((6, 6), generator)
        optimizer = FlowAdam([p, q], lr=0.01, block_size="dense")
        for _ in range(late):
            q.grad = randn(6, 6, generator=generator)
            optimizer.step()
        p.grad = randn(6, 6, generator=torch.Generator().manual_seed(2))
        optimizer.step()
        ends.append(p.detach())
    assert_close("first step", *ends)


@pytest.mark.bad_input
def test_the_state_of_flow_sgd_is_refused(generator):
    p = weight((6, 6), generator)
    optimizer = FlowAdam([p], lr=0.1)
    with pytest.raises(ValueError, match="that of the same optimiser.*no `betas`"):
        optimizer.load_state_dict(FlowSGD([p], lr=0.1).state_dict())


@pytest.mark.parametrize("lr", [1e-3, 0.1, 30.0])
def test_a_square_matrix_alone_takes_the_step_of_a_batch(lr, generator):
    X = random_stiefel(12, 12, generator=generator, dtype=torch.float64)
    D = randn(12, 12, generator=generator, dtype=torch.float64)
    moments = randn(12, generator=generator, dtype=torch.float64).square() + 0.1
    Y, tangent = adapted_polar_step(X, D, lr, moments)
    both = (each.expand(2, 12, 12) for each in (X, D))
    wanted = exact_step(*both, lr, "polar", moments.expand(2, 12))
    torch.testing.assert_close(Y, wanted[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(tangent, tangent_part(X, D), rtol=0, atol=1e-12)


HOST = {s: {"sampler": RelabelledRoundRobin(s)} for s in (2, 3)}
"""Draws that do not depend on the optimiser's count."""


@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 2, **HOST[2]},
        {"block_size": 3, **HOST[3]},
        {"block_size": "dense"},
        {"block_size": "auto"},
        {"block_size": "dense", "retraction": "cayley"},
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(9, 9), (2, 9, 4)], ids=str)
@pytest.mark.parametrize("saved", [False, True])
def test_steps_without_a_gradient_do_not_count(options, shape, saved, generator):
    ends = []
    for gap in (0, 300):
        p, q = weight(shape, torch.Generator().manual_seed(1)), weight((9, 9), generator)
        optimizer = FlowAdam([p, q], lr=0.01, **options)
        gradients = torch.Generator().manual_seed(2)
        for n in range(4):
            if n == 2:
                p.grad, q.grad = None, torch.zeros_like(q)
                for _ in range(gap):
                    optimizer.step()
                q.grad = None
                if saved:
                    state = copy.deepcopy(optimizer.state_dict())
                    optimizer = FlowAdam([p, q], lr=0.01, **options)
                    optimizer.load_state_dict(state)
            p.grad = randn(*shape, generator=gradients)
            optimizer.step()
        ends.append(p.detach())
    assert_close("after a gap", *ends)


@pytest.mark.parametrize("block_size", [2, 3])
def test_fused_steps_without_a_gradient_do_not_count(block_size, generator):
    p, q = weight((6, 6), generator), weight((6, 6), generator)
    optimizer = FlowAdam([p, q], lr=0.01, block_size=block_size)
    for n in range(10):
        p.grad = None if n in (0, 3, 4, 8) else randn(6, 6, generator=generator)
        q.grad = randn(6, 6, generator=generator)
        if n == 9:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizer.step()
    clock = optimizer._shared.clock
    counts = [clock.taken(optimizer.state[r], r.device) for r in (p, q)]
    assert counts == [6, 10]


@pytest.mark.parametrize("options", [HOST[2], {"block_size": "dense"}], ids=str)
def test_skipped_steps_do_not_count(options, generator):
    ends = []
    for skips in (0, 40):
        p = weight((6, 6), torch.Generator().manual_seed(1))
        optimizer = FlowAdam([p], lr=0.01, nonfinite="skip", **options)
        gradients = torch.Generator().manual_seed(2)
        for n in range(3):
            for _ in range(skips if n == 2 else 0):
                p.grad = torch.full_like(p, torch.nan)
                optimizer.step()
            p.grad = randn(6, 6, generator=gradients)
            optimizer.step()
        ends.append(p.detach())
    assert_close("after skipped steps", *ends)


@pytest.mark.parametrize("dtype, eps", [(torch.float32, 1e-30), (torch.float64, 1e-200)], ids=str)
@pytest.mark.parametrize("block_size", [2, 3, "dense", "auto"])
def test_an_eps_whose_square_vanishes_is_no_obstacle(block_size, dtype, eps):
    p, q = nn.Parameter(torch.eye(4, dtype=dtype)), nn.Parameter(torch.eye(9, dtype=dtype))
    optimizer = FlowAdam([p, q], lr=0.1, eps=eps, block_size=block_size)
    for _ in range(3):
        for r in (p, q):
            r.grad = torch.zeros_like(r)
            r.grad[0, 1] = 1.0
        optimizer.step()
    for r in (p, q):
        assert orthogonality_error(r.detach()) < (1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.bad_input
@pytest.mark.parametrize("key", ["exp_avg_sq", "since", "momentum_buffer"])
def test_a_state_with_a_missing_entry_is_refused_and_changes_nothing(key, generator):
    p = weight((6, 6), generator)
    optimizer = FlowAdam([p], lr=0.1, block_size=2)
    p.grad = randn(6, 6, generator=generator)
    optimizer.step()
    state, before = (copy.deepcopy(optimizer.state_dict()) for _ in range(2))
    del state["state"][0][key]
    with pytest.raises(ValueError, match=f"must be whole: .* has no `{key}`"):
        optimizer.load_state_dict(state)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for name, value in before["state"][0].items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(after["state"][0][name]))
