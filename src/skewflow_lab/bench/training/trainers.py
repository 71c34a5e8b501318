"""Ways to train a model whose orthogonal weights are marked, each as one optimiser step.

Each entry of `TRAINERS` takes a model and a learning rate, changes the model if necessary, and
returns the function to call after the backward pass. All use momentum 0.9, and SGD for the free
weights.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal

from skewflow.geometry.matrices import MatrixView, as_matrices
from skewflow.nn import orthogonal_parameters
from skewflow.optim import split_parameters
from skewflow.optim.options import block_size_for

from ...measure.timing import Step
from ...models.methods import Method, block_size, make_optimizers
from ..peers.baselines import free_parameters, geoopt, pogo

MOMENTUM = 0.9

Make = Callable[[nn.Module, float], Step]


def by_method(method: Method) -> Make:
    """A method of the supervised experiments: plain SGD, or FlowSGD on the marked weights."""

    def made(model: nn.Module, lr: float) -> Step:
        return _in_turn(*make_optimizers(model, method, lr=lr, orthogonal_lr=lr, momentum=MOMENTUM))

    return made


def by_peer(make: Callable[..., torch.optim.Optimizer]) -> Make:
    """A library's optimiser of tall matrices on the marked weights.

    Its parameters are views of the model's weights, and get views of their gradients after each
    backward pass, so nothing is copied.
    """

    def made(model: nn.Module, lr: float) -> Step:
        marked, rest = split_parameters(model)
        weights = [p for _, p in marked]
        views = [MatrixView.of(p) for p in weights]
        matrices = [view(p.detach())[0] for view, p in zip(views, weights, strict=True)]
        peer = make(matrices, lr, momentum=MOMENTUM)
        points = peer.param_groups[0]["params"]
        step = _in_turn(peer, torch.optim.SGD(rest, lr=lr, momentum=MOMENTUM))

        def hand_over() -> None:
            for point, view, p in zip(points, views, weights, strict=True):
                point.grad = None if p.grad is None else view(p.grad)[0]
            step()

        return hand_over

    return made


def parametrised(model: nn.Module, lr: float) -> Step:
    """SGD on the free parameters of the marked weights, by torch's parametrisation.

    The forward pass recomputes each weight as the tall matrix of `MatrixView`: torch's function
    would take a convolution weight for a batch of 3 x 3 matrices.
    """
    for layer in list(model.modules()):
        for name in getattr(layer, "orthogonal_names", ()):
            _parametrise(layer, name)
    return _in_turn(torch.optim.SGD(model.parameters(), lr=lr, momentum=MOMENTUM))


def _parametrise(layer: nn.Module, name: str) -> None:
    weight = layer.get_parameter(name)
    view = MatrixView.of(weight)
    free = free_parameters(view(weight.detach())[0], orthogonal)

    def compute(layer: nn.Module, args: object) -> None:
        setattr(layer, name, view.restore(free.weight[None]))  # type: ignore[index]

    delattr(layer, name)
    layer.add_module(f"free_{name}", free)
    layer.register_forward_pre_hook(compute)


FLOWS: dict[str, Method] = {
    "FlowSGD s=2": "s=2",
    "FlowSGD s=r*": "s=r",
    "FlowSGD auto": "auto",
    "FlowSGD exact": "exact",
}
"""FlowSGD's rows of the table; r* = d / ln d, rounded up."""

BASE = "SGD"

TRAINERS: dict[str, Make] = {
    BASE: by_method("vanilla"),
    **{name: by_method(method) for name, method in FLOWS.items()},
    "geoopt RiemannianSGD": by_peer(geoopt),
    "torch orthogonal": parametrised,
    "pogo-torch": by_peer(pogo),
}
"""Ways to train, by their names in tables."""


def block_sizes(model: nn.Module, name: str) -> list[int | str]:
    """The block sizes that a row of FlowSGD uses on the model's weights; none for the others."""
    if name not in FLOWS:
        return []
    found: set[int | str] = set()
    for _, p in orthogonal_parameters(model):
        d = as_matrices(p.detach()).shape[-2]
        size = block_size(FLOWS[name], d)
        found.add(size if size == "auto" else block_size_for(size, d))
    return sorted(found, key=lambda size: (isinstance(size, str), size))


def _in_turn(*optimizers: torch.optim.Optimizer) -> Step:
    def step() -> None:
        for optimizer in optimizers:
            optimizer.step()

    return step
