"""What a learning rate of other libraries becomes here, as the page on moving says."""

import pytest
import torch
from torch import nn

from helpers import randn
from skewflow.geometry import haar
from skewflow.optim import FlowSGD
from skewflow_lab.bench.peers.cayley_sgd import CayleySGD

LR = 1e-6


def velocity(make, wrap=nn.Parameter):
    """How far a step with a small learning rate goes, over that rate."""
    g = torch.Generator().manual_seed(0)
    X = haar(8, dtype=torch.float64, generator=g)
    p = wrap(X.clone())
    p.grad = randn(8, 8, generator=g)
    make(p).step()
    return (p.detach() - X) / LR


def ours():
    return velocity(lambda p: FlowSGD([p], LR, block_size="dense"))


def test_that_of_cayley_sgd_is_halved():
    theirs = velocity(lambda p: CayleySGD([p], lr=LR, momentum=0.0))
    assert torch.allclose(theirs, 0.5 * ours(), atol=1e-4)


@pytest.mark.parametrize("canonical, factor", [(True, 2.0), (False, 0.5)])
def test_that_of_geoopt_depends_on_its_metric(canonical, factor):
    geoopt = pytest.importorskip("geoopt", reason="the extra `peers` is not installed")
    manifold = geoopt.Stiefel(canonical=canonical)
    theirs = velocity(
        lambda p: geoopt.optim.RiemannianSGD([p], lr=LR),
        lambda X: geoopt.ManifoldParameter(X, manifold=manifold),
    )
    assert torch.allclose(theirs, factor * ours(), atol=1e-4)
