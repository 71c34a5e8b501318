"""One orthogonal parameter inside an optimiser: its matrices, its master copy, its name."""

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import _validate
from ..errors import BlockSizeError, NotOnManifoldError, ShapeError
from ..geometry.checks import check_stiefel
from ..geometry.matrices import MatrixView
from ..geometry.project import project
from ..geometry.retractions import HALVES


@dataclass(eq=False)
class Weight:
    """A parameter, how it is seen as matrices, and the number of its first matrix.

    Args:
        p: The parameter.
        name: What error messages call it.
        view: How it is seen as (n, d, k).
        stream: Number of its first matrix among all matrices of the optimiser.
        written: The parameter's version when the optimiser last wrote it; a master copy is stale
            when somebody else has written since.
    """

    p: Tensor
    name: str
    view: MatrixView
    stream: int
    written: int = -1

    @property
    def num_matrices(self) -> int:
        """N."""
        return self.view.matrices[0]

    @property
    def d(self) -> int:
        """Rows of each matrix."""
        return self.view.matrices[1]

    @property
    def stale(self) -> bool:
        """Somebody else has written to a half parameter since its master was brought to it."""
        return self.is_half and self.written >= 0 and self.p._version != self.written

    @property
    def is_half(self) -> bool:
        """It is stepped through a float32 master."""
        return self.p.dtype in HALVES

    def points(self, state: dict[str, Any]) -> Tensor:
        """The tensor that is stepped: the parameter, or the float32 master of a half one."""
        if not self.is_half:
            return self.p
        if "master" not in state or self.stale:
            # The stored half is orthonormal only to its own rounding: start from the nearest point.
            nearest = project(self.view(self.p).float())
            state["master"] = self.view.restore(nearest).clone(memory_format=torch.preserve_format)
            self.written = self.p._version
        master: Tensor = state["master"]
        return master

    def check_shape(self) -> None:
        """The parameter still has the shape it was admitted with."""
        if tuple(self.p.shape) != self.view.shape:
            raise ShapeError(
                f"{self.name} must keep its shape {self.view.shape}: it is {tuple(self.p.shape)} "
                "now. Make a new optimiser for it."
            )

    def check(self) -> None:
        """The parameter is whole, real, floating, finite, large enough, and on the manifold."""
        if _is_sharded(self.p):
            raise TypeError(
                f"{self.name} must be a whole tensor: it is a DTensor, as `fully_shard` makes it. "
                "Sharded weights are not supported: leave it out of the sharding (`fully_shard` "
                "takes `ignored_params`), or use DistributedDataParallel."
            )
        _validate.floating(self.p, self.name)
        if any(
            n > 1 and stride == 0 for n, stride in zip(self.p.shape, self.p.stride(), strict=True)
        ):
            raise ShapeError(
                f"{self.name} must have memory for each of its entries: it is expanded. Call "
                "`.clone()` or `.contiguous()` on it first."
            )
        if self.d < 2:
            raise BlockSizeError(
                f"{self.name} of shape {tuple(self.p.shape)} has matrices of d={self.d} row: there "
                "is nothing to rotate. Give it to another optimiser."
            )
        _validate.matrix(self.p.detach().reshape(self.view.shape[0], -1), self.name)
        check = check_stiefel(self.view(self.p.detach()))
        if not check:
            raise NotOnManifoldError(
                f"{self.name} of shape {tuple(self.p.shape)} must be orthogonal to begin with. "
                f"{check.reason} To start from a random orthogonal weight call "
                "`skewflow.nn.orthogonal_` on it before the optimiser is made."
            )


def _is_sharded(p: Tensor) -> bool:
    # There is no DTensor before its module is imported, which takes a second.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(p, module.DTensor)
