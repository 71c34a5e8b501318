"""The parameters of a model in two lists: orthogonal weights, and the rest."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import nn

from ..errors import ShapeError
from ..geometry.layouts import record_layouts

Named = list[tuple[str, nn.Parameter]]
Names = dict[nn.Parameter, list[str]]


def split_parameters(
    model: nn.Module,
    orthogonal: str | Iterable[str] | Callable[[str, nn.Parameter], bool] | None = None,
) -> tuple[Named, Named]:
    """Split the parameters of a model into those that stay orthogonal and all others.

    The first list goes to `FlowSGD`, the second to any optimiser of torch; names go with the
    parameters, so that errors can say which weight they mean. Together the lists hold every
    parameter of the model once. A parameter with several names has its first name, and is chosen if
    any of its names is. Frozen parameters are included: optimisers skip them until they have a
    gradient. Weights of convolutions are marked as such, so that the optimiser sees the matrix of
    the paper. No weight is changed: to make one orthogonal call `nn.orthogonal_`. Not in the paper.

    Args:
        model: The model.
        orthogonal: The names of the orthogonal weights, with wildcards as in file names (``*`` goes
            over dots), or a function of name and parameter that says which they are. When omitted,
            the weights that their modules mark, as the layers of `skewflow.nn` do: the attribute
            ``orthogonal_names`` of a module or its class lists the names of its orthogonal weights.

    Returns:
        The orthogonal weights and the rest, as (name, parameter), in the model's order.

    Raises:
        ValueError: If a name matches no parameter, a mark names none, or none is chosen.
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
    if orthogonal is None:
        chosen = _marked(model)
    elif callable(orthogonal):
        chosen = {p for p, its in names.items() if any(orthogonal(name, p) for name in its)}
    else:
        patterns = [orthogonal] if isinstance(orthogonal, str) else list(orthogonal)
        chosen = {p for pattern in patterns for p in _matching(pattern, names)}
    if not chosen:
        raise ValueError(
            f"`orthogonal` must choose at least one of the {len(names)} parameters: it chose none. "
            "Their names are those of `model.named_parameters()`; when it is omitted, the marked "
            "ones are chosen, see `skewflow.nn.mark_orthogonal`."
        )
    for p, (name, *_) in names.items():
        if p in chosen and p.ndim < 2:
            raise ShapeError(
                f"`orthogonal` must choose weights of at least two dimensions: it chose {name} of "
                f"shape {tuple(p.shape)}. Leave biases and scales to the other optimiser."
            )
    record_layouts(model, chosen)
    ours = [(its[0], p) for p, its in names.items() if p in chosen]
    return ours, [(its[0], p) for p, its in names.items() if p not in chosen]


def _marked(model: nn.Module) -> set[nn.Parameter]:
    chosen = set()
    for path, module in model.named_modules():
        for name in getattr(module, "orthogonal_names", ()):
            p = getattr(module, name, None)
            if not isinstance(p, nn.Parameter):
                raise ValueError(
                    f"`orthogonal_names` of {path or 'the model'} ({type(module).__name__}) must "
                    f"name parameters of that module: {name!r} is {type(p).__name__}. If it is "
                    "parametrised, call torch.nn.utils.parametrize.remove_parametrizations first."
                )
            chosen.add(p)
    return chosen


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
