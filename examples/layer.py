"""Train twenty layers without normalisation or shortcuts: orthogonal weights preserve the signal.

The network separates two interleaved spirals. Every hidden weight is orthogonal and stays so.
"""

import torch
from torch import nn

import skewflow as sf


def spirals(n):
    """Points on two spirals, and which of the two each point is on."""
    label = torch.arange(n) % 2
    radius = 1 + 5 * torch.rand(n)
    angle = radius + torch.pi * label
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), label


def network(depth=20, width=32):
    """A deep tanh network; its square weights are the orthogonal ones."""
    hidden = [m for _ in range(depth) for m in (sf.nn.OrthogonalLinear(width, width), nn.Tanh())]
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), *hidden, nn.Linear(width, 2))


def accuracy(model, x, y):
    """The fraction of the points that the model classifies correctly."""
    return (model(x).argmax(dim=1) == y).float().mean().item()


def main():
    """Train, and print the accuracy on points that were not trained on."""
    torch.manual_seed(0)
    model, test = network(), spirals(1000)
    orthogonal, rest = sf.optim.split_parameters(model)
    flow = sf.optim.FlowAdam(orthogonal, lr=0.01)
    adam = torch.optim.Adam(rest, lr=0.01)
    before = accuracy(model, *test)
    for _ in range(80):
        x, y = spirals(256)
        flow.zero_grad()
        adam.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        flow.step()
        adam.step()
    print(f"test accuracy        {before:.1%} -> {accuracy(model, *test):.1%}")
    print(f"orthogonality error  {sf.nn.orthogonality_error(model):.0e}")


if __name__ == "__main__":
    main()
