"""The memory and the launches of factored steps on CUDA, for weights of one shape."""

from typing import Any

import torch
import triton
from jaxtyping import Bool, Float
from torch import Tensor

from .._runtime._launch_triton import Launch
from .._runtime.graphs import Workspace
from ..multiply_parts._rows_triton import (
    cut_of,
    fours,
    layout_of,
    row_product_of,
    split_rows_of,
    sum_of,
    summed,
)
from ..multiply_parts._triton import PADDED, Tiles
from . import _take_triton as taking
from . import _triton as kernels
from .reference import LONGEST, coefficients, longest_for, num_rounds

APPLY = Tiles(128, 64, 32, 8, 3)

LARGEST_LR: float = torch.finfo(torch.float32).max


class FactoredWorkspace(Workspace):
    r"""Memory and launches for factored steps of one shape; weights use them in turn.

    Args:
        X: A point (n, d, k) of that shape.
        rank: r; it is rounded up, and the added rows stay zero.
        has_v: Whether V is given, too.
        has_ax: Whether $A^\top X$ is given.
    """

    def __init__(self, X: Float[Tensor, "n d k"], rank: int, *, has_v: bool, has_ax: bool) -> None:
        super().__init__()
        self.size = padded(rank)
        self._n, self._d, self._k = X.shape
        n, d, k, r, size = self._n, self._d, self._k, self.size // 2, self.size
        self._rows = r if has_ax else size
        self._block = _block(size)
        self._tiles = (size // self._block) ** 2
        self._wide_d, self._wide_k = (triton.cdiv(length, PADDED) * PADDED for length in (d, k))

        def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(n, *shape, dtype=dtype, device=X.device)

        def pairs(rows: int, length: int) -> Tensor:
            return new(2, rows, length, dtype=torch.float16)

        self._L, self._L_units = pairs(size, self._wide_d), new(size)
        self._has_v, self._checks = has_v, new(r, 2)
        self._B = None
        if not has_v:
            partials = new(cut_of(n, r, k, d, deep=True)[2], r, d)
            self._B = pairs(r, self._wide_k), new(r), partials, summed(partials)
        self._AX = new(r, k) if has_ax else None
        self._M_partials = new(cut_of(n, size, d, size)[2], size, size)
        self._M = summed(self._M_partials)
        self._T = new(cut_of(n, self._rows, d, k)[2], self._rows, k)
        self._MW, self._JT = new(size, 2 * size), pairs(size, self._wide_k)
        self._C = new(size, self._wide_k)
        self._C_pairs, self._C_units = pairs(size, self._wide_k), new(self._wide_k)
        self._W2, self._P = new(size, size), (new(size, size), new(size, size))
        self._norms, self._scales = new(self._tiles), new(size + 1)
        self._numbers, self._usable = new(2)[0], torch.zeros(n, dtype=torch.bool, device=X.device)
        self._flag = torch.zeros(1, dtype=torch.int32, device=X.device)

    def __call__(
        self,
        X: Float[Tensor, "n d k"],
        A: Float[Tensor, "n d r"],
        B: Float[Tensor, "n k r"],
        lr: float,
        V: Float[Tensor, "n d r"] | None,
        AX: Float[Tensor, "n r k"] | None,
        row: int,
        tolerance: float,
        flag: Tensor | None = None,
    ) -> Bool[Tensor, "n"]:
        r"""Step in place; returns which factors were finite, and V that of this X.

        Args:
            X: Points, which do not change where the factors were not usable.
            A: Left factors.
            B: Right factors.
            lr: Step size.
            V: X B, if `has_v`.
            AX: $A^\top X$, if `has_ax`.
            row: The row of X in which V is checked.
            tolerance: Its largest error, relative to B.
            flag: An int32 in memory that the device can reach: set where factors were not usable.

        Returns:
            In memory that the next call overwrites.
        """
        flag = self._flag if flag is None else flag
        place = (X.data_ptr(), *X.stride(), flag.data_ptr())
        given = {"A_ptr": A, "B_ptr": B, "V_ptr": V, "AX_ptr": AX}
        numbers = {"lr": -min(lr, LARGEST_LR), "tolerance": tolerance, "row": row}
        numbers["rank"] = A.shape[2]
        take, make = (lambda: self._take(X, given)), (lambda: self._make(X, flag))
        self.run(X.device, place, given, numbers, take, make)
        return self._usable

    def fits(self, rank: int) -> bool:
        """Whether factors of this rank are rounded up to those of the workspace."""
        return padded(rank) == self.size

    def _take(self, X: Float[Tensor, "n d k"], given: dict[str, Tensor | None]) -> list[Launch]:
        """The launch that reads the factors."""
        right, units, *_ = self._B or (None, None)
        half, A = self.size // 2, given["A_ptr"]
        assert A is not None
        rows = 1 if A.stride(1) == 1 else 8  # a sector of 32 bytes, if it is stored transposed
        names = {"A_ptr": "stride_a", "B_ptr": "stride_b", "V_ptr": "stride_v"}
        names["AX_ptr"] = "stride_ax"
        strides = {names[key]: (0, 0, 0) if F is None else F.stride() for key, F in given.items()}
        arguments: dict[str, Any] = {
            "L_ptr": self._L, "units_ptr": self._L_units, "right_ptr": right,
            "right_units_ptr": units, "T_ptr": self._AX, "checks_ptr": self._checks,
            "numbers_ptr": self._numbers, "X_ptr": X, "stride_x": X.stride(), **given, **strides,
            "d": self._d, "k": self._k, "half": half, "wide_d": self._wide_d,
            "wide_k": self._wide_k, "HAS_V": self._has_v, "HAS_AX": self._AX is not None,
            "ROWS": rows, "WIDE": 1024 // rows,
        }  # fmt: skip
        return [Launch(taking._take, 2 * self._n * half // rows, arguments, num_warps=4)]

    def _make(self, X: Float[Tensor, "n d k"], flag: Tensor) -> list[Launch]:
        """The launches after the one that reads the factors."""
        n, d, k, size, half = self._n, self._d, self._k, self.size, self.size // 2
        launches = []
        if self._B is not None:  # V^T = B^T X^T, into the lower half of L^T
            right, units, partials, V = self._B
            cut = cut_of(n, half, k, d, deep=True)
            launches.append(row_product_of(partials, right, units, X.mT, None, cut))
            launches += sum_of(V, partials)
            lower = {"L_ptr": self._L, "units_ptr": self._L_units, "V_ptr": V, "half": half, "d": d}
            lower |= {"wide_d": self._wide_d, "FOURS": fours(d), "WIDE": 1024}
            launches.append(Launch(taking._split_lower, n * half, lower, num_warps=4))
        cut = cut_of(n, size, d, size)
        pairs = (self._L, self._L_units)
        launches.append(row_product_of(self._M_partials, *pairs, self._L.mT, self._L_units, cut))
        launches += sum_of(self._M, self._M_partials)
        cut = cut_of(n, self._rows, d, k)
        known = size - self._rows
        pairs = (self._L[:, :, known:], self._L_units[:, known:])
        launches.append(row_product_of(self._T, *pairs, X, None, cut))
        shared: dict[str, Any] = {
            "scales_ptr": self._scales,
            "units_ptr": self._L_units,
            "numbers_ptr": self._numbers,
            "norms_ptr": self._norms,
            "MW_ptr": self._MW,
            "JT_ptr": self._JT,
            "W2_ptr": self._W2,
            "C_ptr": self._C,
            "size": size,
            "d": d,
            "k": k,
            "wide_d": self._wide_d,
            "wide_k": self._wide_k,
            "tiles": self._tiles,
            "longest": LONGEST,
            "TILES": triton.next_power_of_2(self._tiles),
            "FOURS": fours(d, k),
            "DEPTH": 32,
        }
        high, wide = 32, 64
        programs = n * triton.cdiv(size, high) * (triton.cdiv(size, wide) + triton.cdiv(k, wide))
        sums = {"M_ptr": self._M, "T_ptr": self._T, "AX_ptr": self._AX, "rows_of_t": self._rows}
        sums |= {"checks_ptr": self._checks, "flags_ptr": flag, "usable_ptr": self._usable}
        options = {"HALF": triton.next_power_of_2(half), "HIGH": high, "WIDE": wide}
        options |= {"HAS_V": self._has_v, "HAS_AX": self._AX is not None, "PARTIALS": cut[2]}
        launches.append(Launch(kernels._balance, programs, {**shared, **sums, **options}))
        small = {**shared, "BLOCK": self._block}
        launches.append(Launch(kernels._square, 2 * n * self._tiles, small, num_warps=4))
        for m in range(num_rounds(LONGEST, torch.float32), -1, -1):
            a, b = coefficients(m)
            above, enough = (longest_for(j, torch.float32) for j in (m - 1, m))
            term: dict[str, Any] = {"a": a, "b": b, "above": above, "enough": enough}
            term |= {"out_ptr": self._P[m % 2], "P_ptr": self._P[(m + 1) % 2]}
            launches.append(Launch(kernels._term, n * self._tiles, {**small, **term}, num_warps=4))
        last = {**shared, "P_ptr": self._P[0], "BLOCK": 64}
        programs = n * triton.cdiv(size, 64) * triton.cdiv(k, 64)
        launches.append(Launch(kernels._combine, programs, last, num_warps=4))
        columns = (self._C_pairs[:, 0].mT, self._C_units, self._C.mT)
        launches.append(split_rows_of(*columns, self._C_pairs.stride(1), 32, 32))
        tile = APPLY
        applied = {**shared, "X_ptr": X, "L_ptr": self._L, **layout_of(X)}
        applied |= dict(zip(("x_n", "x_row", "x_column"), X.stride(), strict=True))
        applied |= {"C_ptr": self._C_pairs, "C_units_ptr": self._C_units}
        applied |= {"HIGH": tile.high, "WIDE": tile.wide}
        applied["DEPTH"] = tile.depth if size % tile.depth == 0 else 32
        programs = n * triton.cdiv(d, tile.high) * triton.cdiv(k, tile.wide)
        launches.append(Launch(kernels._apply, programs, applied, **tile.options))
        return launches


def padded(rank: int) -> int:
    """2r, rounded up to whole tiles."""
    block = _block(2 * rank)
    return -(-2 * rank // block) * block


def _block(size: int) -> int:
    """Rows of the tiles of small matrices; with few matrices tiles are larger."""
    return 32 if size < 512 else 64
