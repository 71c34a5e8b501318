"""One sharded parameter inside an optimiser."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from ...errors import BlockSizeError, DtypeError, NotOnManifoldError, ShapeError
from ...geometry.checks import TOLERANCE, orthogonality_error
from ..weight import ROUNDING, Weight
from .guard import polish, residual
from .placement import Placement, placement_of, rows_here, turned_view, view_of
from .rounds import run


@dataclass(eq=False)
class ShardedWeight(Weight):
    """A parameter of which each process has a part; its view is that of the whole weight.

    Args:
        placement: How it lies on the processes.
        rows: The numbers of the rows on this process.
    """

    placement: Placement = None  # type: ignore[assignment]
    rows: Tensor = None  # type: ignore[assignment]
    is_sharded: ClassVar[bool] = True

    @classmethod
    def of(cls, p: DTensor, name: str, stream: int, present_until: int) -> "ShardedWeight":
        """The weight of a DTensor; nothing is sent.

        Raises:
            TypeError: If it cannot be stepped in parts.
        """
        if any(placement.is_partial() for placement in p.placements):
            raise TypeError(
                f"{name} must be sharded or replicated: its placements are {p.placements}, and a "
                "partial sum is no parameter. Call `redistribute` first."
            )
        if p.dtype not in (torch.float32, torch.float64):
            raise DtypeError(
                f"{name} must be of float32 or float64 to be sharded: it is of {p.dtype}. Keep "
                "float32 weights, and compute in bfloat16 by "
                "`fully_shard(..., mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))`."
            )
        whole = view_of(p)
        placement = placement_of(p, whole)
        view = turned_view(whole, placement)
        if placement.split == "rows" and placement.offsets is None:
            raise TypeError(
                f"{name} must have its rows in one piece on each process: its placements are "
                f"{p.placements}. Shard one dimension over one dimension of the mesh."
            )
        # The rows are numbered where second moments of rows are put together.
        rows = torch.empty(0, dtype=torch.int64)
        if placement.split == "rows":
            rows = rows_here(view, placement)
        return cls(p, name, view, stream, present_until, placement=placement, rows=rows)

    def local(self, tensor: Tensor) -> Tensor:
        """The part of the weight, its gradient or its momentum on this process, as matrices.

        A gradient with another placement is brought to that of the weight.
        """
        assert isinstance(tensor, DTensor) and isinstance(self.p, DTensor)
        if tensor.placements != self.p.placements:
            tensor = tensor.redistribute(placements=self.p.placements)
        return self.placement.view(tensor.to_local())

    def matrices(self, state: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """The points and the momentum on this process, as matrices (n, d, k)."""
        M = self.local(state["momentum_buffer"]) if "momentum_buffer" in state else None
        return self.local(self.p.detach()), M

    def write_back(self, state: dict[str, Any], X: Tensor, M: Tensor | None = None) -> None:
        """Bring what `matrices` gave into the parts on this process, as far as they are copies."""
        parts = [(self.p.detach(), X)]
        parts += [(state["momentum_buffer"], M)] if M is not None else []
        for tensor, matrices in parts:
            assert isinstance(tensor, DTensor)
            part = tensor.to_local()
            if part.untyped_storage().data_ptr() != matrices.untyped_storage().data_ptr():
                part.copy_(self.placement.view.restore(matrices))

    def factors(self, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
        """The factors (n, d, r) and (n, k, r) of a gradient in the rows and columns here.

        Factors with other placements are brought to that of the weight; whole tensors are those of
        every process.
        """
        p, row = self.p, self.p.ndim - 2
        assert isinstance(p, DTensor)
        parts = []
        for F, other in ((A, row + 1), (B, row)):
            placements = []
            for placement in p.placements:
                dim = getattr(placement, "dim", other)
                placements.append(Replicate() if dim == other else Shard(min(dim, row)))
            if not isinstance(F, DTensor):
                everywhere = [Replicate()] * p.device_mesh.ndim
                F = DTensor.from_local(F, p.device_mesh, everywhere, run_check=False)
            local = F.redistribute(placements=placements).to_local()
            parts.append(local.flatten(0, -3) if p.ndim > 2 else local[None])
        return (parts[1], parts[0]) if self.placement.view.transposed else (parts[0], parts[1])

    def gathered(self, tensor: Tensor) -> Tensor:
        """All of a tensor that is placed as the weight is; all processes call this."""
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def keep_part(self, tensor: Tensor, whole: Tensor) -> None:
        """Write to the part of a tensor on this process, given all of it; nothing is sent."""
        assert isinstance(tensor, DTensor)
        mesh = tensor.device_mesh
        same = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
        tensor.to_local().copy_(same.redistribute(placements=tensor.placements).to_local())

    def whole(self, state: dict[str, Any], grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Points, momentum and gradient of all processes, for reports."""
        tensors = [self.p.detach(), grad]
        tensors += [state["momentum_buffer"]] if "momentum_buffer" in state else []
        X, G, *M = (self.view(self.gathered(tensor)) for tensor in tensors)
        return X, M[0] if M else None, G

    def own(self, key: str, value: Tensor) -> Tensor:
        """A saved tensor in the form of this weight's state: momentum is placed as the weight."""
        p = self.p
        assert isinstance(p, DTensor)
        if key != "momentum_buffer":
            return value
        if isinstance(value, DTensor):
            return value.redistribute(p.device_mesh, p.placements)
        return distribute_tensor(value.to(p.device), p.device_mesh, p.placements)

    def move_buffers(self, state: dict[str, Any]) -> None:
        """Bring momentum and second moments to the dtype and the device of the points."""
        for key in ("momentum_buffer", "exp_avg_sq"):
            if key in state:
                state[key] = state[key].to(self.p.device, self.p.dtype)

    def check_shape(self) -> None:
        """Check that the parameter still has the shape and the placement it was admitted with."""
        assert isinstance(self.p, DTensor)
        here = tuple(self.p.to_local().shape)
        if tuple(self.p.shape) != self.view.shape or here != self.placement.view.shape:
            raise ShapeError(
                f"{self.name} must keep its shape {self.view.shape} and its placement: it is "
                f"{tuple(self.p.shape)} now, with {here} on this process instead of "
                f"{self.placement.view.shape}. Make a new optimiser for it."
            )

    def check(self) -> None:
        """Check that the parameter is large enough, finite and orthogonal; all processes call this.

        Raises:
            BlockSizeError: If there is nothing to rotate.
            NotOnManifoldError: If it is not orthogonal.
        """
        if self.d < 2:
            raise BlockSizeError(
                f"{self.name} of shape {tuple(self.p.shape)} has matrices of d={self.d} row: there "
                "is nothing to rotate. Give it to another optimiser."
            )
        error = self.error()
        if not error <= TOLERANCE[self.p.dtype]:
            raise NotOnManifoldError(
                f"{self.name} of shape {tuple(self.p.shape)} must be orthogonal to begin with: the "
                f"residual X^T X - I, measured along a vector of signs, is {error:.1e}, where "
                f"{TOLERANCE[self.p.dtype]:.0e} is the most. Call `skewflow.nn.orthogonal_` on it "
                "before `fully_shard`, from the same seed in every process, or load orthogonal "
                "weights."
            )

    @torch.no_grad()
    def error(self) -> float:
        r"""About $\|X^\top X - I\|_F / \sqrt k$ of the worst matrix."""
        if self.placement.split == "both":
            X = self.view(self.gathered(self.p.detach()))
            return float(orthogonality_error(X).max()) / X.shape[-1] ** 0.5
        found: float = run([residual(self, 0)])[0]
        return found

    def nearest(self) -> Tensor | None:
        """Project what other code wrote to the nearest orthogonal weight, in place."""
        error = self.error()
        if not error <= 10 * ROUNDING:
            raise NotOnManifoldError(
                f"{self.name} of shape {tuple(self.p.shape)} must stay orthogonal, and something "
                f"other than its optimiser has written to it: the residual X^T X - I is {error:.1e}"
                ". Load orthogonal weights, or give it to another optimiser."
            )
        run([polish(self)])
        return None
