"""Where to shard orthogonal weights, so that their steps are exact and send little."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from .. import _validate
from ..geometry.matrices import MatrixView
from ..optim.split import split_parameters

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard

Steps = Literal["blocks", "exact"]


def shard_placement(
    model: nn.Module,
    mesh: "DeviceMesh | None" = None,
    *,
    steps: Steps = "blocks",
    orthogonal: Any = None,
) -> "Callable[[nn.Parameter], Shard | None]":
    """The `shard_placement_fn` of `fully_shard` for the orthogonal weights of a model.

    A block step sums over the columns of the matrices (d, k), d >= k, that a weight is seen as, an
    exact step over their rows. This puts the shards on the columns, or on the rows for
    ``steps="exact"``: on dimension 1 or 0 of a tall weight, on 0 or 1 of a wide one. A square
    weight stays on dimension 0, where blocks of its columns are cheap, and so does a batch, whose
    matrices then are whole. So does a weight whose dimension the processes do not divide, since
    `fully_shard` splits only the first dimension unevenly. Not in the paper.

    Args:
        model: The model; call this before `fully_shard`.
        mesh: The mesh that `fully_shard` gets; all processes when omitted.
        steps: "blocks" or "exact".
        orthogonal: Which weights are orthogonal, as in `split_parameters`.

    Example:
        >>> from skewflow.nn import OrthogonalLinear
        >>> layer = OrthogonalLinear(32, 64)
        >>> shard_placement(layer)(layer.weight)
        Shard(dim=1)
    """
    from torch.distributed.tensor import Shard  # takes a second

    _validate.one_of(steps, ("blocks", "exact"), "steps")
    ours, _ = split_parameters(model, orthogonal)
    size, placed = _processes(mesh), {}
    for name, p in ours:
        dim = _dimension(MatrixView.of(p, name), steps)
        placed[p] = Shard(dim if p.shape[dim] % size == 0 else 0)
    return lambda p: placed.get(p)


def tensor_parallel_plan(
    model: nn.Module, *, steps: Steps = "blocks", orthogonal: Any = None
) -> Mapping[str, Any]:
    """The plan of `parallelize_module` for the orthogonal linear layers of a model.

    A layer whose weight has to be split along its input is `RowwiseParallel`, one whose weight has
    to be split along its output `ColwiseParallel`; see `shard_placement`. Inputs and outputs of
    each layer are whole, so that the plan fits any model; a pair of layers that passes shards on
    needs a plan of yours. Not in the paper.

    Args:
        model: The model.
        steps: "blocks" or "exact".
        orthogonal: Which weights are orthogonal, as in `split_parameters`.

    Example:
        >>> from skewflow.nn import OrthogonalLinear
        >>> model = nn.Sequential(OrthogonalLinear(32, 64), nn.ReLU(), OrthogonalLinear(64, 8))
        >>> {name: type(style).__name__ for name, style in tensor_parallel_plan(model).items()}
        {'0': 'RowwiseParallel', '2': 'ColwiseParallel'}
    """
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    _validate.one_of(steps, ("blocks", "exact"), "steps")
    ours, _ = split_parameters(model, orthogonal)
    wanted = {p: name for name, p in ours}
    plan: dict[str, Any] = {}
    for path, module in model.named_modules():
        p = getattr(module, "weight", None)
        if isinstance(module, nn.Linear) and p in wanted:
            if _dimension(MatrixView.of(p, wanted[p]), steps) == 0:
                plan[path] = ColwiseParallel(output_layouts=Replicate())
            else:
                plan[path] = RowwiseParallel(input_layouts=Replicate())
    return plan


def _dimension(view: MatrixView, steps: Steps) -> int:
    """The dimension of a weight to split."""
    _, d, k = view.matrices
    if view.layout is None and (d == k or len(view.shape) > 2):
        return 0
    names = ["columns", "rows"] if view.wide else ["rows", "columns"]
    side = names.index("columns" if steps == "blocks" else "rows")
    return 1 - side if view.layout == "transposed convolution" else side


def _processes(mesh: "DeviceMesh | None") -> int:
    """Processes that a parameter is split over: those of the last dimension of a mesh."""
    if mesh is not None:
        return mesh.size(mesh.ndim - 1)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return 1
