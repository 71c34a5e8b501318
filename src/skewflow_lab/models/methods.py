"""The ways of training that the supervised experiments compare (Sec. 6.2)."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from skewflow.geometry import orthogonality_error
from skewflow.geometry.matrices import as_matrices
from skewflow.nn import orthogonal_parameters
from skewflow.optim import FlowSGD, split_parameters

from .series import SeriesSGD

Method = Literal[
    "vanilla", "adam", "exact", "s=2", "s=log", "s=sqrt", "s=r", "auto",
    "taylor20", "taylor100", "taylor200",
]  # fmt: skip
"""SGD or Adam for all weights; or FlowSGD for the marked weights, with all of omega, a matching,
blocks of ln d, sqrt d or r* rows, or "auto"; or the exact step by a Taylor series with the given
number of terms."""


def r_star(d: int) -> int:
    """The block size of the paper's CIFAR-10 runs, d / ln d rounded up.

    Example:
        >>> [r_star(d) for d in (27, 144, 288, 576)]
        [9, 29, 51, 91]
    """
    return math.ceil(d / math.log(d))


def block_size(method: Method, d: int) -> int | Literal["dense", "auto"]:
    """The block size that FlowSGD gets for a matrix of d rows.

    Example:
        >>> [block_size(method, 144) for method in ("exact", "s=2", "s=log", "s=sqrt", "s=r")]
        ['dense', 2, 5, 12, 29]
    """
    if method == "auto":
        return "auto"
    if method == "exact":
        return "dense"
    sizes = {"s=2": 2, "s=log": math.ceil(math.log(d)), "s=sqrt": math.ceil(d**0.5)}
    return sizes[method] if method in sizes else r_star(d)


def make_optimizers(
    model: nn.Module,
    method: Method,
    *,
    lr: float,
    orthogonal_lr: float,
    momentum: float = 0.9,
    seed: int = 0,
    check_every: int = 256,
) -> list[torch.optim.Optimizer]:
    """The optimisers of a model whose orthogonal weights are marked.

    Args:
        model: A model with at least one marked weight, see `skewflow.nn.mark_orthogonal`.
        method: The way of training. "vanilla" and "adam" ignore the marks.
        lr: Learning rate of SGD or Adam, for all weights or all that are not marked.
        orthogonal_lr: Learning rate of the marked weights.
        momentum: Momentum of SGD and of the marked weights.
        seed: Seed of FlowSGD's draws.
        check_every: Steps between FlowSGD's checks of the drift; replayed steps do not count.
    """
    if method == "vanilla":
        return [torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)]
    if method == "adam":
        on_cuda = next(model.parameters()).is_cuda
        return [torch.optim.Adam(model.parameters(), lr=lr, capturable=on_cuda)]
    marked, rest = split_parameters(model)
    sgd = torch.optim.SGD(rest, lr=lr, momentum=momentum)
    if method.startswith("taylor"):
        terms = int(method.removeprefix("taylor"))
        weights = [p for _, p in marked]
        return [SeriesSGD(weights, orthogonal_lr, terms=terms, momentum=momentum), sgd]
    sizes: dict[int | str, list[tuple[str, nn.Parameter]]] = {}
    for name, p in marked:
        d = as_matrices(p).shape[-2]
        sizes.setdefault(block_size(method, d), []).append((name, p))
    groups = [{"params": params, "block_size": size} for size, params in sizes.items()]
    flow = FlowSGD(groups, orthogonal_lr, momentum=momentum, seed=seed, check_every=check_every)
    return [flow, sgd]


def largest_error(model: nn.Module) -> float:
    r"""The largest $\|W^\top W - I\|_F / \sqrt k$ of the marked weights."""
    with torch.no_grad():
        marked = [as_matrices(p) for _, p in orthogonal_parameters(model)]
        return max(map(relative_error, marked))


@torch.no_grad()
def relative_error(X: Float[Tensor, "*batch d k"]) -> float:
    r"""The largest $\|X^\top X - I\|_F / \sqrt k$ of the matrices, comparable between all k.

    Example:
        >>> round(relative_error(2 * torch.eye(5, 3)), 4)
        3.0
    """
    return float(orthogonality_error(X).max()) / X.shape[-1] ** 0.5


def rate_factor(epoch: int, epochs: int) -> float:
    """The factor on the learning rates: divided by ten after 3, 6 and 8 ninths (Sec. 9.1.1).

    Args:
        epoch: Number of the epoch, from 0.
        epochs: Number of epochs of the whole training.

    Example:
        >>> [round(rate_factor(epoch, 9), 6) for epoch in (2, 3, 6, 8)]
        [1.0, 0.1, 0.01, 0.001]
    """
    return float(0.1 ** sum(9 * epoch >= ninths * epochs for ninths in (3, 6, 8)))
