"""The tensors of one step on many parameters of one shape, as the arguments of its kernels.

Their addresses travel as a table on the device.
"""

# mypy: disable-error-code="misc, valid-type"

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from ...tournaments.partitions import edge_probability
from ..permutation._triton import permutation_options
from ..update import Update

TRITON_TYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


@dataclass(frozen=True)
class Operands:
    """The tensors of one step on parameters of one shape, dtype and layout.

    Args:
        Xs: Points (n, d, k), written to.
        Gs: Euclidean gradients of one layout, in any float dtype.
        Ms: Momentum buffers in the dtype of the points, written to; or None.
        Ps: Low-precision tensors of one layout that receive the rounded points; or None.
        streams: Number of the first matrix of each parameter.
        replayed: Steps that CUDA graphs have replayed, an int64 scalar on the device; or None.
        flags: One int32 and one for each parameter, in memory that the host can read: set when
            a product was not finite, and its rows were left as they were.
        live: One int32 for each parameter, on the device: 0 skips its step; or None.
        skipped: How many steps each parameter has skipped, int64 there; or None.
        moments: Second moments of the rows of each matrix by which its planes are divided, on the
            device; or None.
        squares: The mean squares from which `row_moments` computes them, in the same layout; or
            None.
        since: Steps in which the parameters had no gradient; skipped steps do not count.
    """

    Xs: Sequence[Tensor]
    Gs: Sequence[Tensor]
    Ms: Sequence[Tensor] | None
    Ps: Sequence[Tensor] | None
    streams: Sequence[int]
    replayed: Tensor | None
    flags: Tensor
    live: Tensor | None = None
    skipped: Tensor | None = None
    moments: Tensor | None = None
    squares: Tensor | None = None
    since: int = 0

    @property
    def num_matrices(self) -> int:
        """Number of matrices of all parameters together."""
        return len(self.Xs) * self.Xs[0].shape[0]

    @cached_property
    def table(self) -> "Table | None":
        """Addresses of several parameters; None for a single one."""
        return Table(self) if len(self.Xs) > 1 else None

    @property
    def wide(self) -> bool:
        """Whether the kernels are compiled for gradients that allow wide loads.

        A table allows them for all of its addresses or for none.
        """
        every = [*self.Xs, *self.Gs, *(self.Ms or ()), *(self.Ps or ())]
        return all(t.data_ptr() % 16 == 0 for t in (self.Gs if len(self.Xs) == 1 else every))

    @property
    def kept(self) -> list[Tensor | None]:
        """Tensors that the launches read besides the parameters, their gradients and buffers."""
        table = None if self.table is None else self.table.on_device
        return [
            table,
            self.replayed,
            self.flags,
            self.live,
            self.skipped,
            self.moments,
            self.squares,
        ]


@cache
def scale_of(d: int, block_size: int) -> float:
    """The weight 1 / P(e) of the uniform estimate."""
    return float(1 / edge_probability(d, block_size))


def common_arguments(operands: Operands, update: Update) -> dict[str, Any]:
    """Arguments of every kernel that reads the gradient: pointers, strides, types and switches."""
    Xs, Gs, Ms, Ps = operands.Xs, operands.Gs, operands.Ms, operands.Ps
    n, d, k = Xs[0].shape
    many = len(Xs) > 1
    return {
        "X_ptr": None if many else Xs[0],
        "G_ptr": None if many else Gs[0],
        "M_ptr": None if many or Ms is None else Ms[0],
        "P_ptr": None if many or Ps is None else Ps[0],
        "table_ptr": None if operands.table is None else operands.table.on_device,
        "replayed_ptr": operands.replayed,
        "flags_ptr": operands.flags,
        "live_ptr": operands.live,
        "skipped_ptr": operands.skipped,
        "moments_ptr": operands.moments,
        "squares_ptr": operands.squares,
        "since": operands.since,
        "first_stream": operands.streams[0],
        "seed": update.seed,
        "n": n,
        "d": d,
        "k": k,
        "stride_x": Xs[0].stride(),
        "stride_g": Gs[0].stride(),
        "stride_m": Ms[0].stride() if Ms else (0, 0, 0),
        "stride_p": Ps[0].stride() if Ps else (0, 0, 0),
        "X_TYPE": TRITON_TYPES[Xs[0].dtype],
        "G_TYPE": TRITON_TYPES[Gs[0].dtype],
        "P_TYPE": TRITON_TYPES[Ps[0].dtype] if Ps else tl.float32,
        "ALIGNED": many and operands.wide,
        "HAS_M": Ms is not None,
        "HAS_P": Ps is not None,
        "NESTEROV": update.nesterov,
        "MAXIMIZE": update.maximize,
        "CAYLEY": update.retraction == "cayley",
        "INDEPENDENT": update.independent,
        **permutation_options(d),
    }


class Table:
    """Addresses of points, gradients, momenta and low-precision copies, and streams, on the device.

    Changes to them are queued behind the kernels that read them.
    """

    def __init__(self, operands: Operands) -> None:
        Xs = operands.Xs
        tensors = (Xs, operands.Gs, operands.Ms, operands.Ps)
        columns = [[t.data_ptr() for t in ts] if ts else [0] * len(Xs) for ts in tensors]
        self._rows = np.array([*columns, operands.streams], dtype=np.int64).T.copy()
        self.on_device = torch.empty(self._rows.shape, dtype=torch.int64, device=Xs[0].device)
        self._send()

    def move(self, Gs: Sequence[Tensor]) -> None:
        """Take the new addresses of the gradients."""
        self._rows[:, 1] = [G.data_ptr() for G in Gs]
        self._send()

    def _send(self) -> None:
        host = torch.from_numpy(self._rows.copy())
        if self.on_device.is_cuda:
            host = host.pin_memory()
            if torch.cuda.is_current_stream_capturing():
                _captured.append(host)  # every replay copies from it
        self.on_device.copy_(host, non_blocking=True)


_captured: list[Tensor] = []
