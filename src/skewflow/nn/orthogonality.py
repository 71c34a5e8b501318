"""Orthogonality errors of the weights of a model, and projection of a weight."""

import math
from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .. import _validate, geometry
from ..geometry.matrices import MatrixView
from ..optim.split import split_parameters


def orthogonality_error(weight: Tensor | nn.Module) -> float:
    r"""The largest $\|W^\top W - I\|_F / \sqrt k$ of a weight, or of all marked weights of a model.

    The weight is viewed as the optimiser views it: tall, wide, a batch or a convolution. Log this
    number during training: it stays below 1e-5 for float32 weights and below 1e-12 for float64. It
    is NaN if a weight is not finite. A half-precision weight has its own rounding, 2e-3;
    `FlowSGD.report` has the error of its float32 master. `geometry.orthogonality_error` is the
    norm of each matrix without the factor (not in the paper).

    Args:
        weight: A module with marked weights, or a parameter; do not detach the parameter of a
            `Conv1d` or a transposed convolution, which carries its layout.

    Raises:
        ValueError: If a module has no marked weights; see `orthogonality_errors`.

    Example:
        >>> from skewflow.nn import OrthogonalConv2d
        >>> layer = OrthogonalConv2d(3, 8, 3)
        >>> orthogonality_error(layer) == orthogonality_error(layer.weight) < 1e-6
        True
    """
    if isinstance(weight, nn.Module):
        errors = list(orthogonality_errors(weight).values())
        return math.nan if any(map(math.isnan, errors)) else max(errors)
    return _error(weight, "`weight`")


def orthogonality_errors(
    model: nn.Module,
    orthogonal: str | Iterable[str] | Callable[[str, nn.Parameter], bool] | None = None,
) -> dict[str, float]:
    """The `orthogonality_error` of each orthogonal weight of a model, by name (not in the paper).

    Args:
        model: The model.
        orthogonal: The weights, as in `split_parameters`; the marked ones when omitted.

    Raises:
        ValueError: If no weight is chosen.

    Example:
        >>> model = nn.RNN(3, 8)
        >>> _ = nn.init.eye_(model.weight_hh_l0)
        >>> orthogonality_errors(model, "weight_hh*")
        {'weight_hh_l0': 0.0}
    """
    return {name: _error(p, name) for name, p in split_parameters(model, orthogonal)[0]}


@torch.no_grad()
def project_(weight: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Replace a weight by the nearest orthogonal one, in place (not in the paper).

    Use it after other code has averaged, pruned or loaded the weight. The weight is viewed as the
    optimiser views it, while `geometry.project` takes matrices only.

    Args:
        weight: A parameter: tall, wide, a batch or a convolution.

    Returns:
        The same tensor.

    Example:
        >>> weight = project_(2 * torch.eye(3, 5))
        >>> bool(torch.equal(weight, torch.eye(3, 5)))
        True
    """
    _validate.floating(weight, "weight")
    view = MatrixView.of(weight, "`weight`")
    weight.copy_(view.restore(geometry.project(view(weight))))
    return weight


@torch.no_grad()
def _error(weight: Tensor, name: str) -> float:
    _validate.floating(weight, name.strip("`"))
    X = MatrixView.of(weight, name)(weight)
    if not torch.isfinite(X).all():
        return math.nan
    return float(geometry.orthogonality_error(X).max()) / math.sqrt(X.shape[-1])
