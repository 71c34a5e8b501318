"""The ways of training that the supervised experiments compare."""

import pytest
import torch
from torch import nn

from skewflow.nn import OrthogonalConv2d, OrthogonalLinear
from skewflow_lab.models.methods import largest_error, make_optimizers, rate_factor, relative_error


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(
        OrthogonalConv2d(3, 8, 3), nn.Flatten(), OrthogonalLinear(32, 32), nn.Linear(32, 2)
    )


@pytest.mark.parametrize(
    "method, sizes",
    [
        ("exact", ["dense"]),
        ("s=2", [2]),
        ("s=r", [9, 10]),
        ("s=log", [4]),
        ("s=sqrt", [6]),
        ("taylor20", []),
        ("auto", ["auto"]),
        ("vanilla", None),
        ("adam", None),
    ],
)
def test_every_method_trains_and_keeps_what_it_says(method, sizes, model):
    optimizers = make_optimizers(model, method, lr=0.1, orthogonal_lr=0.1)
    x, y = torch.randn(20, 3, 4, 4), torch.randint(2, (20,))
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    if sizes is None:
        assert len(optimizers) == 1 and largest_error(model) > 1e-3
    else:
        groups = optimizers[0].param_groups
        assert [group["block_size"] for group in groups if "block_size" in group] == sizes
        assert largest_error(model) < 1e-5
    held = {p for o in optimizers for group in o.param_groups for p in group["params"]}
    assert held == set(model.parameters())


def test_the_error_does_not_grow_with_the_number_of_columns():
    for k in (4, 64):
        layer = OrthogonalLinear(64, k)
        with torch.no_grad():
            layer.weight.mul_(1.1)
        assert largest_error(layer) == pytest.approx(1.1**2 - 1, rel=1e-4)


def test_the_error_of_a_batch_is_its_worst_and_asks_for_no_gradient():
    X = torch.stack([torch.eye(6, 3), 1.1 * torch.eye(6, 3)]).requires_grad_()
    assert relative_error(X) == pytest.approx(1.1**2 - 1, rel=1e-4)


@pytest.mark.parametrize("epochs, drops", [(100, [34, 67, 89]), (9, [3, 6, 8]), (4, [2, 3, 4])])
def test_the_rates_drop_with_the_first_epoch_after_each_ninth(epochs, drops):
    for epoch in range(epochs):
        passed = sum(epoch >= drop for drop in drops)
        assert rate_factor(epoch, epochs) == pytest.approx(0.1**passed)
