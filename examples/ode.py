"""Classify two spirals by a differential equation whose weight flows on the orthogonal group.

The gradient runs the equation backwards instead of storing its steps, so it needs the memory of a
single step.
"""

import math

import torch
from torch import nn

import skewflow as sf

WIDTH, STEPS = 16, 20


def spirals(n):
    """Points on two interleaved spirals, (2n, 2), and the number of each point's spiral."""
    angle = 2.5 * math.pi * torch.rand(2, n).sqrt() + 0.5
    turn = angle + torch.tensor([[0.0], [math.pi]])
    points = torch.stack([angle * turn.cos(), angle * turn.sin()], dim=-1) / 6
    return points.flatten(0, 1), torch.arange(2).repeat_interleave(n)


def main():
    """Train, and print the accuracy on new points."""
    torch.manual_seed(0)
    ode = sf.nn.OrthogonalODE(WIDTH, STEPS, time=3.0, method="strang")
    net = nn.Sequential(nn.Linear(2, WIDTH), ode, nn.Linear(WIDTH, 2))
    orthogonal, rest = sf.optim.split_parameters(net)
    flow = sf.optim.FlowAdam(orthogonal, lr=0.02)
    adam = torch.optim.Adam([p for _, p in rest], lr=0.02)

    def accuracy():
        with torch.no_grad():
            x, label = spirals(500)
            return (net(x).argmax(dim=1) == label).float().mean().item()

    before = accuracy()
    for _ in range(60):
        x, label = spirals(64)
        flow.zero_grad()
        adam.zero_grad()
        nn.functional.cross_entropy(net(x), label).backward()
        flow.step()
        adam.step()
    _, W = ode.end(torch.zeros(1, WIDTH))
    error = sf.nn.orthogonality_error(W.detach())
    print(f"accuracy             {before:.1%} -> {accuracy():.1%}")
    print(f"orthogonality error  {error:.0e} after {STEPS} steps")


if __name__ == "__main__":
    main()
