"""Steps whose blocks a sampler draws on the host."""

import pytest
import torch

from skewflow.geometry import haar, orthogonality_error
from skewflow.optim import FlowSGD
from skewflow.samplers import HRegular


@pytest.mark.parametrize("retraction", ["exp", "cayley"])
@pytest.mark.parametrize("block_size", [2, 3, 8])
def test_steps_of_a_sampler_stay_orthogonal_however_large_the_gradient(
    block_size, retraction, generator
):
    for size in (1.0, 1e6, 1e12, 1e50):
        p = torch.nn.Parameter(haar(16, generator=generator, dtype=torch.float64))
        options = {"sampler": HRegular(block_size), "retraction": retraction}
        optimizer = FlowSGD([p], lr=1.0, **options)
        for _ in range(10):
            p.grad = size * torch.randn(16, 16, generator=generator, dtype=torch.float64)
            optimizer.step()
            assert orthogonality_error(p.detach()) / 4 < 1e-12
