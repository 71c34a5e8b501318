"""The parameters of a model in two lists: orthogonal weights, and the rest."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import nn

from ..errors import ShapeError

Named = list[tuple[str, nn.Parameter]]
Names = dict[nn.Parameter, list[str]]


def split_parameters(
    model: nn.Module, orthogonal: str | Iterable[str] | Callable[[str, nn.Parameter], bool]
) -> tuple[Named, Named]:
    """The weights of a model that are to stay orthogonal, and all its other parameters.

    The first list goes to `FlowSGD`, the second to any optimiser of torch; names go with the
    parameters, so that errors can say which weight they mean. Together the lists hold every
    parameter of the model once: a shared one under its first name, but chosen if any of its names
    is; frozen ones too, which optimisers leave alone until they have a gradient. No weight is
    changed: to make one orthogonal call `nn.orthogonal_`. Not in the paper.

    Args:
        model: The model.
        orthogonal: The names of the orthogonal weights, with wildcards as in file names (``*`` goes
            over dots), or a function of name and parameter that says which they are.

    Returns:
        The orthogonal weights and the rest, as (name, parameter), in the model's order.

    Raises:
        ValueError: If a name matches no parameter, or none is chosen.
        ShapeError: If a parameter of less than two dimensions is chosen.

    Example:
        >>> from torch import nn
        >>> model = nn.ModuleDict({"rnn": nn.RNN(3, 8), "head": nn.Linear(8, 2)})
        >>> ours, rest = split_parameters(model, "rnn.weight_hh*")
        >>> [name for name, _ in ours]
        ['rnn.weight_hh_l0']
        >>> [name for name, _ in rest]
        ['rnn.weight_ih_l0', 'rnn.bias_ih_l0', 'rnn.bias_hh_l0', 'head.weight', 'head.bias']
    """
    names: Names = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(p, []).append(name)
    if callable(orthogonal):
        chosen = {p for p, its in names.items() if any(orthogonal(name, p) for name in its)}
    else:
        patterns = [orthogonal] if isinstance(orthogonal, str) else list(orthogonal)
        chosen = {p for pattern in patterns for p in _matching(pattern, names)}
    if not chosen:
        raise ValueError(
            f"`orthogonal` must choose at least one of the {len(names)} parameters: it chose none. "
            "Their names are those of `model.named_parameters()`."
        )
    for p, (name, *_) in names.items():
        if p in chosen and p.ndim < 2:
            raise ShapeError(
                f"`orthogonal` must choose weights of at least two dimensions: it chose {name} of "
                f"shape {tuple(p.shape)}. Leave biases and scales to the other optimiser."
            )
    ours = [(its[0], p) for p, its in names.items() if p in chosen]
    return ours, [(its[0], p) for p, its in names.items() if p not in chosen]


def _matching(pattern: str, names: Names) -> list[nn.Parameter]:
    found = [p for p, its in names.items() if any(fnmatchcase(name, pattern) for name in its)]
    if not found:
        every = [name for its in names.values() for name in its]
        nearest = ", ".join(get_close_matches(pattern, every, n=3, cutoff=0.0))
        raise ValueError(
            f"`orthogonal` must name parameters of the model: {pattern!r} matches none of its "
            f"{len(every)} names. The nearest: {nearest or 'it has no parameters'}."
        )
    return found
