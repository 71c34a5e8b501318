"""The drift guard of weights that are stepped by factors."""

import pytest
import torch
from torch import nn

from helpers import randn
from skewflow.geometry import orthogonality_error
from skewflow.kernels.rotate_factored.reference import factored_generator
from skewflow.nn import orthogonal_
from skewflow.optim import FlowSGD

DENSE = {"lr": 0.1, "block_size": "dense"}


def weight(shape, generator):
    return nn.Parameter(orthogonal_(torch.empty(shape), generator=generator))


def factors(p, r, generator):
    A, B = (randn(n, r, generator=generator, dtype=torch.float32) for n in p.shape)
    return A, B / p.numel() ** 0.5


def test_the_guard_looks_at_factored_weights(generator):
    p = weight((40, 40), generator)
    optimizer = FlowSGD([p], **DENSE, check_every=2)
    with torch.no_grad():
        p *= 1 + 4e-5
    for _ in range(2):
        optimizer.step(factors={p: factors(p, 1, generator)})
    assert orthogonality_error(p.detach()) < 1e-5
    assert optimizer.state[p]["polishes"] == 1


def test_the_guard_counts_the_factored_steps_of_each_weight(generator):
    p, q = (weight((40, 40), generator) for _ in range(2))
    optimizer = FlowSGD([p, q], **DENSE, check_every=2)
    with torch.no_grad():
        p *= 1 + 4e-5
        q *= 1 + 4e-5
    for _ in range(2):
        for one in (p, q):  # so that one of them never moves at a step with an even number
            optimizer.step(factors={one: factors(one, 1, generator)})
    assert optimizer.state[p]["polishes"] == optimizer.state[q]["polishes"] == 1


@pytest.mark.parametrize(
    "rank, momentum, length, fixed",
    [(4, 0.0, 1.0, True), (4, 0.0, 3.0, False), (1, 0.9, 1.0, False)],
)
def test_thousands_of_long_factored_steps_stay_on_the_manifold(
    rank, momentum, length, fixed, generator
):
    p = weight((64, 32), generator)
    A, B = factors(p, rank, generator)
    lr = length / float(factored_generator(A[None], (p.detach() @ B)[None]).norm)
    optimizer, worst = FlowSGD([p], lr=lr, momentum=momentum, block_size="dense"), 0.0
    for step in range(3000):
        if not fixed:
            A, B = factors(p, rank, generator)
        optimizer.step(factors={p: (A, B)})
        if step % 16 == 15:
            worst = max(worst, float(orthogonality_error(p.detach().double()) / 32**0.5))
    assert worst < 4e-6
    assert optimizer.state[p]["polishes"] > 0  # it would not have been without the guard
