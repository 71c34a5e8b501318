"""A loss of the spanned subspace alone: steps commute with a change of basis."""

import pytest
import torch

from skewflow.geometry import grassmann_distance, haar
from skewflow.optim import FlowAdam, FlowSGD

D, K = 12, 4


@pytest.mark.parametrize("optimizer", [FlowSGD, FlowAdam])
@pytest.mark.parametrize("block_size", [2, 3, "dense"])
def test_steps_on_an_invariant_loss_commute_with_a_change_of_basis(
    optimizer, block_size, generator
):
    X = haar(D, K, generator=generator, dtype=torch.float64)
    Q = haar(K, generator=generator, dtype=torch.float64)
    S = torch.randn(D, D, generator=generator, dtype=torch.float64)

    def descend(X):
        W = torch.nn.Parameter(X.clone())
        momentum = {"momentum": 0.9} if optimizer is FlowSGD else {}
        steps = optimizer([W], lr=0.01, block_size=block_size, seed=3, **momentum)
        for _ in range(20):
            steps.zero_grad()
            P = W @ W.mT
            torch.trace(P @ (S + S.mT) @ P @ S).backward()  # a function of the projector P alone
            steps.step()
        return W.detach()

    after = descend(X)
    assert torch.allclose(descend(X @ Q), after @ Q, atol=1e-9)
    assert grassmann_distance(X, after) > 0.1
