"""Exact steps of one shape together: what the device decides, on the CPU."""

import pytest
import torch
from torch import nn

from executor_cases import executor_of
from helpers import randn
from skewflow.errors import NonFiniteGradientError
from skewflow.geometry.matrices import MatrixView
from skewflow.nn import orthogonal_
from skewflow.optim import FlowAdam, FlowSGD
from skewflow.optim.executors.dense_batch import DenseBatch


@pytest.mark.parametrize("first", [0, 1])
def test_weights_with_and_without_a_momentum_buffer_step_together(first, generator):
    params = [nn.Parameter(orthogonal_(torch.empty(8, 8), generator=generator)) for _ in range(2)]
    optimizer = FlowSGD(params, lr=0.1, momentum=0.9, block_size="dense")
    params[first].grad = randn(8, 8, generator=generator, dtype=torch.float32)
    optimizer.step()  # only this one has a buffer now
    optimizer.param_groups[0]["momentum"] = 0.0
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = randn(8, 8, generator=generator, dtype=torch.float32)
    optimizer.step()
    assert all((p - q).abs().max() > 1e-2 for p, q in zip(params, before, strict=True))


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("shape", [(9, 4), (4, 9), (2, 9, 4)], ids=str)
def test_a_weight_whose_direction_is_not_finite_stays_and_is_reported(shape, skip, generator):
    batch = executor_of(DenseBatch, [shape] * 3, generator, block_size="dense", skip=skip)
    states = [member.state for member in batch.members]
    views = [member.weight.view for member in batch.members]
    D = torch.cat([view(randn(*shape, generator=generator)) for view in views])
    D[len(D) // 3, 2, 1] = torch.inf  # of the second weight
    finite = batch._usable(D)
    assert finite.tolist() == [True, False, True]
    X, Y = torch.zeros_like(D), torch.ones_like(D)
    Y[-1, 0, 0] = torch.nan  # a product of the third overflowed
    moved = batch._reported(X, Y, finite)
    assert [part.unique().tolist() for part in moved.chunk(3)] == [[1.0], [1.0], [0.0]]
    assert [state["skipped"].item() for state in states] == [0, int(skip), int(skip)]
    batch._seen.copy_(batch._bad)
    if skip:
        batch.complain()
    else:
        with pytest.raises(NonFiniteGradientError, match="gradient of weight 1, weight 2 must be"):
            batch.complain()
        batch.complain()  # once


@pytest.mark.parametrize("flow", [FlowSGD, FlowAdam])
@pytest.mark.parametrize("shape", [(9, 9), (9, 4), (4, 9)], ids=str)
def test_an_exact_step_keeps_the_tangent_part_of_the_momentum(flow, shape, generator):
    p = nn.Parameter(orthogonal_(torch.empty(shape, dtype=torch.float64), generator=generator))
    options = {"momentum": 0.9} if flow is FlowSGD else {}
    optimizer = flow([p], lr=0.1, block_size="dense", **options)
    view = MatrixView.of(p)
    for _ in range(3):
        X = view(p.detach()).clone()
        p.grad = randn(*shape, generator=generator)
        optimizer.step()
        M = view(optimizer.state[p]["momentum_buffer"])
        assert M.norm() > 0.1 and (X.mT @ M + M.mT @ X).abs().max() < 1e-14


@pytest.mark.parametrize("d, k", [(64, 6), (12, 12)])
def test_momentum_finds_the_leading_vectors_of_a_matrix(d, k, generator):
    values = torch.linspace(1, 0, d, dtype=torch.float64)
    Q = orthogonal_(torch.empty(d, d, dtype=torch.float64), generator=generator)
    C, weights = Q @ values.diag() @ Q.mT, torch.linspace(1, 0.2, k, dtype=torch.float64)
    p = nn.Parameter(orthogonal_(torch.empty(d, k, dtype=torch.float64), generator=generator))
    optimizer = FlowSGD([p], lr=0.5, momentum=0.9, block_size="dense")
    for _ in range(400):
        optimizer.zero_grad()
        loss = -(p * (C @ p) * weights).sum()
        loss.backward()
        optimizer.step()
    gap = loss.item() + (values[:k] * weights).sum().item()
    assert gap < 1e-9  # 0.05 and 0.6 with the normal part
