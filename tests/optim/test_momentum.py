"""The momentum of block steps turns with the rows it belongs to, whoever draws the blocks."""

import pytest
import torch
from torch import nn

from helpers import assert_close, randn
from skewflow.geometry.matrices import MatrixView
from skewflow.nn import orthogonal_
from skewflow.optim import FlowAdam, FlowSGD
from skewflow.samplers import HeavyMatchings, RoundRobin

OPTIONS = {
    "pairs": {"block_size": 2},
    "blocks": {"block_size": 3},
    "large": {"block_size": 6},
    "cayley": {"block_size": 3, "retraction": "cayley"},
    "round_robin": {"block_size": 2, "sampler": RoundRobin()},
    "heavy": {"block_size": 2, "sampler": HeavyMatchings()},
}


@pytest.mark.parametrize("flow", [FlowSGD, FlowAdam])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("shape", [(9, 9), (9, 4), (4, 9), (2, 9, 4)], ids=str)
def test_a_block_step_keeps_the_product_of_point_and_momentum(shape, name, flow, generator):
    p = nn.Parameter(orthogonal_(torch.empty(shape, dtype=torch.float64), generator=generator))
    options = {"momentum": 0.9} if flow is FlowSGD else {}
    optimizer = flow([p], lr=0.05, **OPTIONS[name], **options)
    view = MatrixView.of(p)
    M = torch.zeros_like(view(p.detach()))
    for _ in range(4):
        p.grad = randn(*shape, generator=generator)
        X = view(p.detach()).clone()
        product = X.mT @ (0.9 * M + view(p.grad))
        optimizer.step()
        M = view(optimizer.state[p]["momentum_buffer"]).clone()
        assert (view(p.detach()) - X).abs().max() > 1e-3
        assert_close("X^T M", product, view(p.detach()).mT @ M)


@pytest.mark.parametrize("sampler", ["uniform", RoundRobin()], ids=str)
def test_normal_gradients_of_the_past_give_no_force(sampler, generator):
    p = nn.Parameter(orthogonal_(torch.empty(12, 5, dtype=torch.float64), generator=generator))
    optimizer = FlowSGD([p], lr=0.02, momentum=0.9, block_size=2, sampler=sampler)
    for _ in range(3):  # move, with a normal part in every gradient
        N = randn(5, 5, generator=generator)
        p.grad = randn(12, 5, generator=generator) + 100 * p.detach() @ (N + N.mT)
        optimizer.step()
    M = optimizer.state[p]["momentum_buffer"]
    X, normal = p.detach().clone(), p.detach().mT @ M
    M -= X @ (normal - normal.mT) / 2 + (M - X @ normal)  # leave the normal part alone
    assert M.norm() > 100
    for _ in range(3):
        p.grad = torch.zeros_like(p)
        optimizer.step()
    assert_close("X", X, p.detach(), factor=100)


def test_momentum_of_blocks_finds_the_leading_vectors_of_a_matrix(generator):
    values = torch.linspace(1, 0, 64, dtype=torch.float64)
    Q = orthogonal_(torch.empty(64, 64, dtype=torch.float64), generator=generator)
    C, weights = Q @ values.diag() @ Q.mT, torch.linspace(1, 0.2, 6, dtype=torch.float64)
    p = nn.Parameter(orthogonal_(torch.empty(64, 6, dtype=torch.float64), generator=generator))
    optimizer = FlowSGD([p], lr=0.1, momentum=0.9, block_size=8)
    for _ in range(400):
        optimizer.zero_grad()
        loss = -(p * (C @ p) * weights).sum()
        loss.backward()
        optimizer.step()
    gap = loss.item() + (values[:6] * weights).sum().item()
    # 2.9e-3; without turning the momentum 0.78, and 3.9e-2 at its best learning rate, 0.05.
    assert gap < 1e-2
