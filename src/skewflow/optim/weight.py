"""One orthogonal parameter inside an optimiser: its matrices, its master copy, its name."""

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar
from warnings import warn

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.parameter import is_lazy

from .. import _validate
from ..errors import BlockSizeError, DtypeError, NotOnManifoldError, ShapeError
from ..geometry.checks import check_stiefel
from ..geometry.matrices import MatrixView
from ..geometry.retractions import HALVES
from ..kernels.polish.reference import polish_

NEAR = 0.1
"""Largest distance of a singular value from 1 at which a weight that other code wrote is projected
to the nearest orthogonal one. Rounding to bfloat16 leaves 0.01, averages of a run's weights 0.05;
an initialisation that is not orthogonal is farther away."""

POLISHES = 5
"""Newton-Schulz steps after which singular values within `NEAR` of 1 are accurate to 1e-16."""

ROUNDING = 1e-3
"""Largest distance that a cast to fewer digits explains; a smaller one gives no warning."""


@dataclass(eq=False)
class Weight:
    """A parameter, how it is seen as matrices, and the number of its first matrix.

    Args:
        p: The parameter.
        name: What error messages call it.
        view: How it is seen as (n, d, k).
        stream: Number of its first matrix among all matrices of the optimiser.
        present_until: Step of the optimiser up to which the steps without this weight are counted.
        scale: c, if its columns have the length c: then its master over c is stepped.
    """

    p: Tensor
    name: str
    view: MatrixView
    stream: int
    present_until: int = 0
    scale: float = 1.0
    is_sharded: ClassVar[bool] = False
    """Whether each process has only a part of it."""

    @property
    def num_matrices(self) -> int:
        """N."""
        return self.view.matrices[0]

    @property
    def d(self) -> int:
        """Rows of each matrix."""
        return self.view.matrices[1]

    @property
    def is_half(self) -> bool:
        """Whether its master has float32."""
        return self.p.dtype in HALVES

    @property
    def has_master(self) -> bool:
        """Whether it is stepped through a master: orthonormal columns, of float32 for a half."""
        return self.is_half or self.scale != 1

    def points(self, state: dict[str, Any]) -> Tensor:
        """The tensor that is stepped: the parameter, or its master."""
        if not self.has_master:
            state.pop("master", None)  # of a model that was cast to more digits
            return self.p
        digits = torch.float32 if self.is_half else self.p.dtype
        if "master" not in state or state["master"].dtype != digits:  # the model was cast
            self.renew_master(state)
        master: Tensor = state["master"]
        return master

    def matrices(self, state: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """The points and the momentum, if there is one, as matrices (n, d, k)."""
        M = self.view(state["momentum_buffer"]) if "momentum_buffer" in state else None
        return self.view(self.points(state)), M

    def gathered(self, tensor: Tensor) -> Tensor:
        """All of a tensor that is placed as the weight is."""
        return tensor

    def whole(self, state: dict[str, Any], grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Points, momentum and gradient, for reports."""
        return *self.matrices(state), self.view(grad)

    def own(self, key: str, value: Tensor) -> Tensor:
        """A saved tensor in the form of this weight's state."""
        return value.full_tensor() if _is_dtensor(value) else value  # type: ignore[attr-defined]

    def views(self, state: dict[str, Any]) -> tuple[Tensor, Tensor | None] | None:
        """Like `points`, but a view that executors may keep; None if only a copy could be made."""
        tensors = [self.points(state).detach()]
        tensors += [state["momentum_buffer"]] if "momentum_buffer" in state else []
        if any(t.is_inference() for t in tensors):
            return None
        views = [self.view(t) for t in tensors]
        if any(view.data_ptr() != t.data_ptr() for view, t in zip(views, tensors, strict=True)):
            return None
        return views[0], views[1] if len(views) > 1 else None

    def write_back(self, state: dict[str, Any], X: Tensor, M: Tensor | None = None) -> None:
        """Bring points and momentum into the state and the parameter, as far as they are copies."""
        if M is not None and M.data_ptr() != state["momentum_buffer"].data_ptr():
            state["momentum_buffer"].copy_(self.view.restore(M))
        stepped: Tensor = state.get("master", self.p)
        if X.untyped_storage().data_ptr() != stepped.untyped_storage().data_ptr():
            stepped.copy_(self.view.restore(X))  # the memory has no such view
        if stepped is not self.p:
            self.p.copy_(self.of_master(stepped))

    def of_master(self, master: Tensor) -> Tensor:
        """The values of the parameter that belong to a master."""
        return (master if self.scale == 1 else master * self.scale).to(self.p.dtype)

    def seen(self) -> Float[Tensor, "n d k"]:
        """The parameter as matrices whose columns should have the length 1."""
        X = self.view(self.p.detach())
        return X if self.scale == 1 else X / self.scale

    def move_buffers(self, state: dict[str, Any]) -> None:
        """Bring momentum and second moments to the dtype and the device of the points."""
        points = self.points(state)
        for key in ("momentum_buffer", "exp_avg_sq"):
            if key in state:
                state[key] = state[key].to(points)

    def renew_master(self, state: dict[str, Any]) -> None:
        """Start the master at the orthogonal matrices nearest to the rounded weight."""
        seen = self.seen()
        nearest = _nearest(seen.float() if self.is_half else seen)
        state["master"] = self.view.restore(nearest).clone(memory_format=torch.preserve_format)

    def is_behind(self, state: dict[str, Any]) -> bool:
        """Whether a weight differs from its master; waits for the device."""
        if not self.has_master or "master" not in state:
            return False
        return not torch.equal(self.p.detach(), self.of_master(state["master"]))

    def nearest(self) -> Tensor | None:
        """The orthogonal weight nearest to what other code wrote; None if that is orthogonal.

        Raises:
            NotOnManifoldError: If it is too far away to be meant.
        """
        self.check_shape()
        X = self.seen()
        if bool(torch.isfinite(X).all()):
            if check_stiefel(X):
                return None
            X = X.float() if self.is_half else X
            off = float((torch.linalg.svdvals(X) - 1).abs().max())
            if ROUNDING < off <= NEAR:
                warn(
                    f"{self.name} was written by something other than its optimiser, and is not "
                    f"orthogonal: a singular value is {off:.1e} from 1. The nearest orthogonal "
                    "weight replaces it. If another optimiser has this weight, too, take it out of "
                    "that one; after loading rounded or averaged weights nothing is wrong.",
                    stacklevel=2,
                )
            if off <= NEAR:
                return self.of_master(self.view.restore(_nearest(X)))
            what = f"a singular value is {off:.1e} from 1, where {NEAR} is the most"
        else:
            what = "it holds NaN or infinity"
        call = "call `skewflow.nn.project_` on it for the nearest or `skewflow.nn.orthogonal_`"
        if self.scale != 1:
            call = f"call `skewflow.nn.orthogonal_` with scale={self.scale:g} on it"
        raise NotOnManifoldError(
            f"{self.name} of shape {tuple(self.p.shape)}{_over(self.scale)} must stay orthogonal, "
            f"and something other than its optimiser has written to it: {what}. Load orthogonal "
            f"weights, {call} for random ones, or give it to another optimiser."
        )

    def check_shape(self) -> None:
        """Check that the parameter still has the shape it was admitted with."""
        if tuple(self.p.shape) != self.view.shape:
            raise ShapeError(
                f"{self.name} must keep its shape {self.view.shape}: it is {tuple(self.p.shape)} "
                "now. Make a new optimiser for it."
            )
        if not self.p.untyped_storage().nbytes():
            raise ShapeError(
                f"{self.name} of shape {self.view.shape} must keep its memory: it was freed, as "
                "by sharding. Bring it back before the step, or make a new optimiser."
            )

    def check(self) -> None:
        """Check that the parameter is finite, large enough, and on the manifold."""
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
        X = self.seen()
        check = check_stiefel(X)
        if check:
            return
        of = "on it" if self.scale == 1 else f"with scale={self.scale:g} on it"
        way_out = (
            f"To start from a random orthogonal weight call `skewflow.nn.orthogonal_` {of} before "
            "the optimiser is made."
        )
        if X.dtype == torch.float64 and check_stiefel(X.float()):
            project = "call `skewflow.nn.project_` on it, or " if self.scale == 1 else ""
            way_out = (
                f"It is orthogonal to the digits of float32, as after `model.double()`: {project}"
                "cast the model before `orthogonal_`."
            )
        raise NotOnManifoldError(
            f"{self.name} of shape {tuple(self.p.shape)}{_over(self.scale)} must be orthogonal to "
            f"begin with. {check.reason} {way_out}"
        )


def _nearest(X: Float[Tensor, "n d k"]) -> Float[Tensor, "n d k"]:
    """The nearest orthogonal matrices, for singular values within `NEAR` of 1.

    It uses products only: unlike those of an SVD, their bits do not depend on the number of
    threads.
    """
    Y = X.clone()
    for _ in range(POLISHES):
        polish_(Y)
    return Y


def _over(scale: float) -> str:
    return "" if scale == 1 else f" over its scale {scale:g}"


def weight_of(p: Tensor, name: str, stream: int, present_until: int, scale: float = 1.0) -> Weight:
    """The weight of a parameter; see `Weight`."""
    if _is_dtensor(p):
        if scale != 1:
            raise ValueError(
                f"`scale` must be 1 for a sharded weight: got {scale:g} for {name}. Multiply in "
                "the forward pass instead."
            )
        from .sharded.weight import ShardedWeight  # torch's DTensor, on use

        return ShardedWeight.of(p, name, stream, present_until)  # type: ignore[arg-type]
    return Weight(p, name, MatrixView.of(p, name), stream, present_until, scale)


def check_admitted(params: Iterable[Tensor], weights: Collection[Tensor]) -> None:
    """Check that all parameters of a group are weights of the optimiser."""
    for number, p in enumerate(params):
        if p not in weights:
            raise ValueError(
                f"parameter {number} of a group must have been given to the optimiser: one of "
                f"shape {tuple(p.shape)} was put into `param_groups` later. Call "
                "`add_param_group`, or make a new optimiser."
            )


def check_kind(p: Tensor, name: str) -> None:
    """Check that the parameter is a real floating-point tensor with memory, whole or a DTensor."""
    if getattr(p, "_is_flat_param", False) or getattr(p, "_fsdp_flattened", False):
        raise TypeError(
            f"{name} must be a whole tensor or a DTensor: it is a flat shard, as "
            "FullyShardedDataParallel makes it. Use `fully_shard`, leave the layer out of the "
            "sharding (`ignored_modules`), or use DistributedDataParallel."
        )
    if is_lazy(p):
        raise ValueError(
            f"{name} must have a shape: it is not initialised, as in the lazy layers of torch. "
            "Run the model once, and call `orthogonal_` for this weight, before the optimiser is "
            "made."
        )
    if p.is_nested or p.layout != torch.strided:
        kind = "a nested tensor" if p.is_nested else f"of layout {p.layout}"
        raise TypeError(
            f"{name} must be a dense tensor: it is {kind}. Orthogonal matrices are dense: call "
            "`to_dense()` on it, or give it to another optimiser."
        )
    if p.dtype not in _validate.FLOATS:
        raise DtypeError(
            f"{name} must be a real floating-point tensor: it is of {p.dtype}. Unitary weights are "
            "not supported: give it to another optimiser, or keep real and imaginary parts."
            if p.is_complex()
            else f"{name} must be a real floating-point tensor: it is of {p.dtype}. Cast it first."
        )
    if p.device.type == "meta":
        raise ValueError(
            f"{name} must have memory: it is on the meta device. Call `to_empty` and initialise "
            "the model, `orthogonal_` for this weight, before the optimiser is made."
        )


def _is_dtensor(p: Tensor) -> bool:
    # There is no DTensor before its module is imported, which takes a second.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(p, module.DTensor)
