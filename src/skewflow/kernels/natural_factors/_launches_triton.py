"""The memory and the launches of natural factors on CUDA, for weights of one shape."""

from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from ...geometry.precision import is_coarse
from .._runtime._launch_triton import Launch
from .._runtime.graphs import Workspace
from ..multiply_parts._rows_triton import (
    ENOUGH,
    cut_of,
    row_product_of,
    split_rows_of,
    sum_of,
    summed,
)
from ..multiply_parts._triton import PADDED, TILES, Parts, product_of
from ..update import LARGEST_GRADIENT
from . import _take_triton as taking
from . import _triton as kernels
from ._inverse_root_triton import ROWS, inverse_root_of, padded
from .reference import DAMPING, GROWTH, ROUNDING, lengthening

PARTIALS = 64
"""Number of parts into which the rows are split; one program sums the squares of each."""

HIGH, WIDE = 16, 128
"""Rows and columns of a tile in kernels without products."""

BLOCK = 4096
"""Entries that a program checks at a time."""

EPS, TINY = torch.finfo(torch.float32).eps, torch.finfo(torch.float32).tiny

State = tuple[Tensor, Tensor, Tensor]
"""The inverse moment, its numbers and a vector, as the reference takes them."""


class NaturalWorkspace(Workspace):
    """Memory and launches for natural factors of one shape; weights use them in turn.

    Args:
        X: A point (n, d, k) of that shape.
        rank: r; it is rounded up, and the added rows are zero.
    """

    def __init__(self, X: Float[Tensor, "n d k"], rank: int) -> None:
        super().__init__()
        n, d, k = self._shape = X.shape
        size = self.size = size_for(rank)
        self._wide_d, self._wide_k = (triton.cdiv(length, PADDED) * PADDED for length in (d, k))
        rows = 2 * size + 1

        def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(n, *shape, dtype=dtype, device=X.device)

        def units(*shape: int, unit: float) -> Tensor:
            return torch.full((n, *shape), unit, device=X.device)

        def pairs(rows: int, length: int) -> Tensor:
            return torch.zeros(n, 2, rows, length, dtype=torch.float16, device=X.device)

        self._sums = new(2, PARTIALS, triton.next_power_of_2(size), dtype=torch.float64)
        self._numbers, self._fresh, self._scales = new(4), new(3), new(2, size)
        self._live, self._unit = new(dtype=torch.bool), new()
        self._A, self._M = pairs(size, self._wide_d), pairs(rows, self._wide_k)
        self._units = units(rows, unit=taking.UNIT.value)
        self._cuts = {
            "P": cut_of(n, size, d, k, deep=True),
            "HM": cut_of(n, 2 * size, k, k, deep=True),
            "S": cut_of(n, size, k, rows, deep=True),
            "XQ": cut_of(n, size, k, d, deep=True),
        }
        self._P = new(self._cuts["P"][2], size, k)
        self._HM_partials = new(self._cuts["HM"][2], rows, k)
        self._HM = summed(self._HM_partials)
        self._HM_pairs, self._HM_units = pairs(rows, self._wide_k), new(rows)
        self._S_partials = new(self._cuts["S"][2], size, rows)
        self._S = summed(self._S_partials)
        self._panel, self._R = new(ROWS, padded(size)), new(size, rows)
        self._K, self._out = new(3 * size + 1, size), new(3 * size + 1, k)
        self._T = pairs(triton.cdiv(size, PADDED) * PADDED, self._wide_k)
        self._T_units = units(unit=taking.UNIT.value)
        self._Q = pairs(size, self._wide_k)
        self._Q_units = units(size, unit=kernels.UNIT_OF_Q.value)
        self._XQ, self._A_new = new(self._cuts["XQ"][2], size, d), new(size, d)

    def __call__(
        self,
        X: Float[Tensor, "n d k"],
        A: Float[Tensor, "n d r"],
        B: Float[Tensor, "n k r"],
        state: State,
    ) -> tuple[Float[Tensor, "n d r"], Float[Tensor, "n k r"]]:
        """Like the reference, but each matrix is handled separately and errors are not returned.

        Where the factors were not usable, or the moment has no root, the state does not change and
        the first factor is NaN.

        Args:
            X: Points.
            A: Left factors of the gradient.
            B: Right factors.
            state: Written to.

        Returns:
            In memory that the next call overwrites.
        """
        place = (X.data_ptr(), *X.stride(), is_coarse(X), *(F.data_ptr() for F in state))
        rank = A.shape[-1]
        numbers = {"rank": rank, "longer": lengthening(X.shape[-1], rank)}
        take, make = (lambda: self._take(A, B, state)), (lambda: self._make(X, state))
        self.run(X.device, place, {"A_ptr": A, "B_ptr": B}, numbers, take, make)
        return self._A_new[:, :rank].mT, self._out[:, self.size : self.size + rank].mT

    def _take(self, A: Tensor, B: Tensor, state: State) -> list[Launch]:
        """The launches that read the factors, up to the first product with H."""
        (n, d, k), size, (H, numbers, v) = self._shape, self.size, state
        shared: dict[str, Any] = {
            "A_ptr": A, "B_ptr": B, "stride_a": A.stride(), "stride_b": B.stride(),
            "numbers_ptr": self._numbers, "fresh_ptr": self._fresh, "scales_ptr": self._scales,
            "unit_ptr": self._unit, "state_ptr": numbers, "sums_ptr": self._sums, "H_ptr": H,
            "v_ptr": v, "A_out_ptr": self._A, "M_ptr": self._M, "n": n, "d": d, "k": k,
            "size": size, "wide_d": self._wide_d, "wide_k": self._wide_k,
            "A_low": self._A.stride(1), "M_low": self._M.stride(1), "PARTIALS": PARTIALS,
            "most": float(LARGEST_GRADIENT[torch.float32]), "least": TINY, "growth": GROWTH,
            "part": (DAMPING / k) ** 0.5, "rounding": ROUNDING * EPS, "even": k**-0.5,
            "HIGH": HIGH, "WIDE": self._sums.shape[-1], "BLOCK": BLOCK,
        }  # fmt: skip
        tile = {**shared, "WIDE": WIDE}
        taken = n * triton.cdiv(size, HIGH) * (triton.cdiv(d, WIDE) + triton.cdiv(k, WIDE))
        return [
            Launch(taking._squares, 2 * n * PARTIALS, shared, num_warps=4),
            Launch(taking._decide, n, shared, num_warps=8),
            Launch(taking._reset_moment, n * triton.cdiv(k, HIGH), tile, num_warps=4),
            Launch(taking._take, taken, tile, num_warps=4),
        ]

    def _make(self, X: Float[Tensor, "n d k"], state: State) -> list[Launch]:
        """The launches from the first product with H on."""
        (n, d, k), size, (H, numbers, v) = self._shape, self.size, state
        cuts = self._cuts
        shared: dict[str, Any] = {
            "M_ptr": self._M, "P_ptr": self._P, "v_ptr": v, "R_ptr": self._R, "S_ptr": self._S,
            "numbers_ptr": self._numbers, "K_ptr": self._K, "out_ptr": self._out, "T_ptr": self._T,
            "HM_ptr": self._HM, "H_ptr": H, "state_ptr": numbers, "fresh_ptr": self._fresh,
            "live_ptr": self._live, "Q_ptr": self._Q, "n": n, "d": d, "k": k, "size": size,
            "wide_d": self._wide_d, "wide_k": self._wide_k, "T_low": self._T.stride(1),
            "M_low": self._M.stride(1), "Q_low": self._Q.stride(1), "A_low": self._A.stride(1),
            "eps": EPS, "PARTIALS": cuts["P"][2],
            "HIGH": HIGH, "WIDE": WIDE, "BLOCK": 32,
        }  # fmt: skip
        left, coarse = self._units[:, :size], is_coarse(X)
        launches = [row_product_of(self._P, self._A, left, X, None, cuts["P"], coarse=coarse)]
        filled = n * triton.cdiv(size + 1, HIGH) * triton.cdiv(k, WIDE)
        launches.append(Launch(taking._fill, filled, shared, num_warps=4))
        partials, M, units = self._HM_partials[:, :, :-1], self._M[:, :, :-1], self._units[:, :-1]
        launches.append(row_product_of(partials, M, units, H, self._unit, cuts["HM"]))
        launches += sum_of(self._HM, self._HM_partials)
        tile = {**shared, "HIGH": 8, "WIDE": 512}
        launches.append(Launch(kernels._iterate, n * triton.cdiv(k, 8), tile, num_warps=4))
        low = self._HM_pairs.stride(1)
        launches.append(split_rows_of(self._HM_pairs[:, 0], self._HM_units, self._HM, low, 1, 1024))
        upper, right = self._M[:, :, :size], self._HM_pairs.mT
        launches.append(
            row_product_of(self._S_partials, upper, left, right, self._HM_units, cuts["S"])
        )
        launches += sum_of(self._S, self._S_partials)
        launches.append(
            inverse_root_of(self._R, self._live, self._panel, self._S, self._numbers, size)
        )
        small = n * triton.cdiv(size, 32) * triton.cdiv(size + 1, 32)
        launches.append(Launch(kernels._solve, small, shared, num_warps=4))
        small = n * triton.cdiv(3 * size + 1, 32) * triton.cdiv(size, 32)
        launches.append(Launch(kernels._coefficients, small, shared, num_warps=4))
        wide = triton.cdiv(k, 64)
        high = 128 if n * wide * 4 >= ENOUGH else 32
        tile = {**shared, "HIGH": high, "WIDE": 64, "DEPTH": 32}
        tiles = n * triton.cdiv(3 * size + 1, high) * wide
        launches.append(Launch(kernels._combine, tiles, tile, num_warps=4))
        T = Parts(self._T, self._T_units, size, k)
        also: dict[str, Any] = {"live": self._live, "symmetric": True, "tiles": TILES[-1]}
        launches.append(product_of(H, None, T.mT, T, H, -1.0, **also))
        launches.append(Launch(kernels._update_state, n, {**shared, "BLOCK": BLOCK}, num_warps=8))
        tiles = n * triton.cdiv(size, HIGH) * triton.cdiv(k, WIDE)
        launches.append(Launch(kernels._span_part, tiles, shared, num_warps=4))
        pairs = (self._Q, self._Q_units)
        launches.append(row_product_of(self._XQ, *pairs, X.mT, None, cuts["XQ"], coarse=coarse))
        tiles = n * triton.cdiv(size, HIGH) * triton.cdiv(d, WIDE)
        given = {**shared, "out_ptr": self._A_new, "A_ptr": self._A, "XQ_ptr": self._XQ}
        given["PARTIALS"] = cuts["XQ"][2]
        launches.append(Launch(kernels._write_factor, tiles, given, num_warps=4))
        return launches


def size_for(rank: int) -> int:
    """The rank, rounded up: few sizes serve all ranks."""
    return triton.cdiv(rank, ROWS) * ROWS
