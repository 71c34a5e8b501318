"""The placement of a sharded weight on its processes, as matrices (d, k)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ...geometry.layouts import layout_of
from ...geometry.matrices import MatrixView
from .rounds import Groups

Split = Literal["nothing", "columns", "rows", "both"]


@dataclass(frozen=True)
class ShardView(MatrixView):
    """The part of a weight on this process as matrices.

    Args:
        transposed: Whether the stored matrices are transposed; the shape of a part does not tell.
    """

    transposed: bool = False

    @cached_property
    def wide(self) -> bool:
        """Whether the view transposes the stored matrices."""
        return self.transposed

    @cached_property
    def matrices(self) -> tuple[int, int, int]:
        """The numbers of matrices, of their rows and of their columns on this process."""
        n, rows, columns = self._stored
        return (n, columns, rows) if self.transposed else (n, rows, columns)


@dataclass(frozen=True)
class Placement:
    """The part of a weight on each process, and the processes with which it forms sums.

    Args:
        split: The dimension of each matrix that is split: the columns, over which the inner
            products of a block step sum; the rows, over which the products of an exact step sum;
            both; or neither, if the weight is replicated or each matrix is whole on one process.
        mesh: The mesh of the processes.
        summed: The dimensions of the mesh that split matrices.
        batch: Those that split the batch.
        view: The view of the part on this process.
        first: Number of its first matrix among those of the weight.
        offsets: Where the part begins in each dimension of the weight; None if it is not in one
            piece.
        turned: Whether a square matrix is treated as its transpose, so that its columns are split.
    """

    split: Split
    mesh: DeviceMesh
    summed: tuple[int, ...]
    batch: tuple[int, ...]
    view: ShardView
    first: int
    offsets: tuple[int, ...] | None
    turned: bool

    # Properties, since a copy or a pickle can hold a mesh, but no groups.
    @property
    def groups(self) -> Groups:
        """The processes that have the other parts of the same matrices."""
        return tuple(self.mesh.get_group(dim) for dim in self.summed)

    @property
    def all_groups(self) -> Groups:
        """The processes that have other parts of the weight."""
        return self.groups + tuple(self.mesh.get_group(dim) for dim in self.batch)


def view_of(p: DTensor) -> MatrixView:
    """The view of the whole weight; nothing is sent."""
    layout = layout_of(p)
    strided = torch.empty_strided(p.shape, p.stride(), device="meta")
    last = layout == "convolution" and not strided[0].is_contiguous()
    return MatrixView(tuple(p.shape), layout, last)


def placement_of(p: DTensor, view: MatrixView) -> Placement:
    """The placement of a weight; a square matrix whose rows are split counts as its transpose."""
    mesh, sides = p.device_mesh, _sides(view)
    _, d, k = view.matrices
    over: dict[str, list[int]] = {"batch": [], "rows": [], "columns": []}
    for dim, placement in enumerate(p.placements):
        if mesh.size(dim) > 1 and hasattr(placement, "dim"):
            over[sides[placement.dim]].append(dim)
    turned = d == k and bool(over["rows"]) and not over["columns"]
    if turned:
        over["rows"], over["columns"] = over["columns"], over["rows"]
    split: Split = "nothing"
    if over["rows"] and over["columns"]:
        split = "both"
    elif over["rows"] or over["columns"]:
        split = "rows" if over["rows"] else "columns"
    shape, offset = compute_local_shape_and_global_offset(p.shape, mesh, p.placements)
    whole = all(type(x) is Shard or not hasattr(x, "dim") for x in p.placements)
    local = ShardView(tuple(shape), view.layout, view.channels_last, view.wide != turned)
    first = 0
    for size, start in zip(view.shape[:-2], offset, strict=False):
        first = first * size + (start if view.layout is None else 0)
    return Placement(
        split=split,
        mesh=mesh,
        summed=(*over["rows"], *over["columns"]),
        batch=tuple(over["batch"]),
        view=local,
        first=first if over["batch"] else 0,
        offsets=tuple(offset) if whole else None,
        turned=turned,
    )


def rows_here(view: MatrixView, placement: Placement) -> Tensor:
    """The numbers, among all rows, of those on this process, for a weight in one piece."""
    assert placement.offsets is not None
    n, d, k = view.matrices
    numbers = view.restore(torch.arange(d)[None, :, None].expand(n, d, k))
    for dim, (start, size) in enumerate(zip(placement.offsets, placement.view.shape, strict=True)):
        numbers = numbers.narrow(dim, start if size else 0, size)
    here = placement.view(numbers)
    return here[0, :, 0] if here.numel() else numbers.new_empty(0)


def _sides(view: MatrixView) -> Sequence[str]:
    """The role of each dimension of a weight in its matrices: batch, rows or columns."""
    names = ("columns", "rows") if view.wide else ("rows", "columns")
    if view.layout is None:
        return ["batch"] * (len(view.shape) - 2) + list(names)
    out = 1 if view.layout == "transposed convolution" else 0
    return [names[0] if dim == out else names[1] for dim in range(len(view.shape))]


def turned_view(view: MatrixView, placement: Placement) -> MatrixView:
    """The view of the whole weight whose rows and columns are those of the parts."""
    if not placement.turned:
        return view
    fields: dict[str, Any] = {"shape": view.shape, "layout": view.layout}
    return replace(ShardView(**fields), channels_last=view.channels_last, transposed=not view.wide)
