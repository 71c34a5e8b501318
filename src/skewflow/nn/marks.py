"""Marks on modules that name their orthogonal weights."""

import torch
from torch import nn

from ..geometry.layouts import record_layouts
from ..optim.split import Named, split_parameters
from .init import orthogonal_


def mark_orthogonal(
    module: nn.Module, name: str, *, generator: torch.Generator | None = None
) -> None:
    """Make a weight of a module orthogonal and mark it for `split_parameters` (not in the paper).

    The weight is filled by `orthogonal_`. The kernel of a convolution of torch (also of one or
    three dimensions, or transposed) becomes the paper's matrix (kernel * C_in, C_out). To mark a
    weight that is already orthogonal, set the mark: ``module.orthogonal_names = ("weight",)``; a
    class may have it as an attribute. Copies, pickles, moves, casts and `torch.compile` keep the
    mark. A `state_dict` does not contain it; the code that builds the model sets it.

    Args:
        module: The module that holds the weight.
        name: The name of the weight in that module, such as "weight_hh_l0".
        generator: Source of randomness; torch's global one when omitted.

    Raises:
        ValueError: If the module itself has no parameter of that name, or is a grouped
            convolution.
        ShapeError: If the weight has less than two dimensions.

    Example:
        >>> from skewflow.optim import split_parameters
        >>> rnn = nn.RNN(3, 8)
        >>> mark_orthogonal(rnn, "weight_hh_l0")
        >>> orthogonal, rest = split_parameters(rnn)
        >>> [name for name, _ in orthogonal]
        ['weight_hh_l0']
    """
    own = dict(module.named_parameters(recurse=False))
    if name not in own:
        raise ValueError(
            f"`name` must be a parameter of {type(module).__name__} itself: got {name!r}; it has "
            f"{', '.join(own) or 'no parameters'}. Pass the submodule that holds the weight."
        )
    record_layouts(module, [own[name]])
    orthogonal_(own[name], generator=generator)
    marked = tuple(getattr(module, "orthogonal_names", ()))
    if name not in marked:
        module.orthogonal_names = (*marked, name)  # type: ignore[assignment]


def orthogonal_parameters(module: nn.Module) -> Named:
    """The marked weights of a model with their names, for `FlowSGD` or `FlowAdam`.

    They are the first list of `split_parameters` (not in the paper).

    Raises:
        ValueError: If nothing is marked.

    Example:
        >>> from skewflow.nn import OrthogonalLinear
        >>> model = nn.Sequential(OrthogonalLinear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        >>> [name for name, _ in orthogonal_parameters(model)]
        ['0.weight']
    """
    return split_parameters(module)[0]
