"""Bend a Gaussian into a curved density by Sylvester flows, whose orthogonal factors are trained.

The divergence from the target is an expectation under the flow, as in variational inference. The
formula of each determinant is right only because the factors stay orthogonal.
"""

import math

import torch
from torch import nn

import skewflow as sf

DIMENSION, FLOWS, STEPS = 3, 8, 150


def log_target(z):
    """A normalised density along a parabola: z_0 is Gaussian, and the others lie around z_0^2."""
    first, others = z[:, 0], z[:, 1:] - (z[:, :1] ** 2 - 1)
    squares = first.square() + (others / 0.5).square().sum(dim=1)
    return -(squares + DIMENSION * math.log(2 * math.pi)) / 2 - (DIMENSION - 1) * math.log(0.5)


def divergence(flows, n):
    """An estimate from n points of the Kullback-Leibler divergence of the flows' density."""
    z = torch.randn(n, DIMENSION)
    log_density = -(z.square().sum(dim=1) + DIMENSION * math.log(2 * math.pi)) / 2
    for flow in flows:
        z, log_det = flow(z)
        log_density = log_density - log_det
    return (log_density - log_target(z)).mean()


def main():
    """Train, and print the divergence before and after."""
    torch.manual_seed(0)
    flows = nn.ModuleList(sf.nn.SylvesterFlow(DIMENSION, DIMENSION) for _ in range(FLOWS))
    orthogonal, rest = sf.optim.split_parameters(flows)
    flow_adam = sf.optim.FlowAdam(orthogonal, lr=0.03)
    adam = torch.optim.Adam([p for _, p in rest], lr=0.03)
    with torch.no_grad():
        before = divergence(flows, 20_000).item()
    for _ in range(STEPS):
        flow_adam.zero_grad()
        adam.zero_grad()
        divergence(flows, 256).backward()
        flow_adam.step()
        adam.step()
    with torch.no_grad():
        after = divergence(flows, 20_000).item()
    print(f"divergence           {before:.2f} -> {after:.2f} nats")
    print(f"orthogonality error  {sf.nn.orthogonality_error(flows):.0e}")


if __name__ == "__main__":
    main()
