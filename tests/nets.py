"""A small net with one orthogonal weight, its two optimisers, and how they train."""

import torch
from torch import nn

from helpers import randn
from skewflow.nn import orthogonal_
from skewflow.optim import FlowSGD, split_parameters


class Net(nn.Module):
    """A small net with one orthogonal weight."""

    def __init__(self, seed=0, dtype=torch.float64):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.turn = nn.Linear(8, 8, bias=False, dtype=dtype)
        self.head = nn.Linear(8, 3, dtype=dtype)
        orthogonal_(self.turn.weight, generator=generator)
        with torch.no_grad():
            for p in self.head.parameters():
                p.copy_(0.3 * randn(*p.shape, generator=generator))

    def forward(self, x):
        return self.head(self.turn(x).tanh())


def loss_of(model, generator):
    x = randn(16, 8, generator=generator).to(model.head.weight.dtype)
    return (model(x) - x[:, :3].roll(1, -1)).square().mean()


def both(model, **options):
    ours, rest = split_parameters(model, "turn.weight")
    options = {"lr": 0.02, "momentum": 0.9, "block_size": 2} | options
    return FlowSGD(ours, **options), torch.optim.AdamW(rest, lr=0.02)


def train(model, optimizers, steps, scaler=None, compiled=None, seed=7):
    """Plain training; the losses."""
    data, losses = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = loss_of(model if compiled is None else compiled, data)
        losses.append(loss.item())
        (loss if scaler is None else scaler.scale(loss)).backward()
        for optimizer in optimizers:
            optimizer.step() if scaler is None else scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
    return losses
