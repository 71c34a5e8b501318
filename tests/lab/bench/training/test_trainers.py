"""Every way to train steps the model's own weights, and keeps them orthogonal where it says so."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from skewflow.geometry import orthogonality_error
from skewflow.geometry.matrices import as_matrices
from skewflow.nn import OrthogonalConv2d, OrthogonalLinear
from skewflow_lab.bench.training.trainers import BASE, TRAINERS, block_sizes, by_peer

# Importing pogo compiles with torch, which warns about itself.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
LIBRARIES = {"geoopt RiemannianSGD": "geoopt", "pogo-torch": "pogo"}
LAYERS = (0, 2, 3)


@pytest.fixture(params=TRAINERS)
def name(request):
    if request.param in LIBRARIES:
        pytest.importorskip(LIBRARIES[request.param])
    return request.param


@pytest.fixture(params=[torch.contiguous_format, torch.channels_last], ids=["first", "last"])
def layout(request):
    return request.param


def network(layout=torch.contiguous_format):
    """Its matrices are tall and wide: 27 x 8, 2 x 32 as stored, 16 x 2."""
    torch.manual_seed(0)
    return nn.Sequential(
        OrthogonalConv2d(3, 8, 3),
        nn.Flatten(),
        OrthogonalLinear(32, 2),
        OrthogonalLinear(2, 16),
        nn.Linear(16, 2),
    ).to(memory_format=layout)


def train(model, name, num_steps, lr=0.05):
    """Losses of so many steps; then the weights of the orthogonal layers, as computed last."""
    optimise = TRAINERS[name](model, lr)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(20, 3, 4, 4, generator=generator)
    y = torch.randint(2, (20,), generator=generator)
    losses = []
    for _ in range(num_steps):
        model.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimise()
        losses.append(loss.item())
    model(x)
    return losses, [model[i].weight.detach() for i in LAYERS]


def test_every_method_trains_the_model_and_all_but_sgd_keep_it_orthogonal(name, layout):
    model = network(layout)
    before = [model[i].weight.detach().clone() for i in LAYERS]
    losses, weights = train(model, name, 40)
    assert losses[-1] < 0.7 * losses[0]
    assert all((a - b).norm() > 1e-3 for a, b in zip(before, weights, strict=True))
    # pogo does not retract: it comes back to the manifold by itself, in the square of the step.
    limit = 1e-2 if name == "pogo-torch" else 1e-5
    errors = [float(orthogonality_error(as_matrices(W)).max()) for W in weights]
    assert (max(errors) < limit) == (name != BASE)


def test_every_method_starts_from_the_models_own_weights(name, layout):
    expected, _ = train(network(layout), BASE, 1)
    found, _ = train(network(layout), name, 1)
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_library_gets_views_of_weights_and_gradients(layout):
    model, seen = network(layout), []

    class Watched(torch.optim.SGD):
        def step(self):
            (points,) = (group["params"] for group in self.param_groups)
            for i, X in zip(LAYERS, points, strict=True):
                W = model[i].weight
                seen.append(X.data_ptr() == W.data_ptr())
                seen.append(X.grad.data_ptr() == W.grad.data_ptr())
                seen.append(torch.equal(X.grad, as_matrices(W.grad)[0]))
            super().step()

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TRAINERS, "watched", by_peer(lambda Xs, lr, **options: Watched(Xs, lr)))
        train(model, "watched", 2)
    assert seen == 18 * [True]


def test_the_block_sizes_are_those_that_flowsgd_takes():
    model = network()
    assert block_sizes(model, "FlowSGD s=2") == [2]
    assert block_sizes(model, "FlowSGD s=r*") == [6, 9, 10]  # of 16, 27 and 32 rows
    assert block_sizes(model, "FlowSGD exact") == ["dense"]
    assert block_sizes(model, BASE) == []
