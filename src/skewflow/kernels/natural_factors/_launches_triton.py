"""The memory and the launches of natural factors on CUDA, for one weight."""

from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from ...geometry.precision import is_coarse
from .._devices import on
from .._triton import Launch
from ..multiply_parts._triton import TILES, Parts
from ..multiply_parts._triton import product_of as product_of_parts
from ..rotate_factored._launches_triton import (
    Repeated,
    cut_of,
    product_of,
    split_of,
    sum_of,
    summed,
)
from ..update import LARGEST_GRADIENT
from . import _triton as kernels
from ._inverse_root_triton import ROWS, inverse_root_of, padded
from .reference import DAMPING, GROWTH, ROUNDING, lengthening

PADDED = 64
"""Rows of pairs begin at multiples of it."""

SHARES, HIGH, WIDE = 64, 16, 128
"""Of the squares of columns, that are added up apart; rows and columns of a tile of the rest."""

BLOCK = 4096
"""Entries that a program looks at together."""


class Workspace:
    """What the launches for one weight share.

    Args:
        X: Its points (n, d, k).
        rank: r.
        state: The inverse moment, its numbers and a vector, as the reference takes them; the
            launches write to them.
    """

    def __init__(
        self, X: Float[Tensor, "n d k"], rank: int, state: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        n, d, k = X.shape
        self._shape, self._rank, self._state = (n, d, k), rank, state
        self._place = _place(X, state)
        self._wide_d, self._wide_k = (_tiles(length, PADDED) * PADDED for length in (d, k))
        rows = 2 * rank + 1

        def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(n, *shape, dtype=dtype, device=X.device)

        def pairs(rows: int, length: int) -> Tensor:
            return new(2, rows, length, dtype=torch.float16)

        self._sums = new(2, SHARES, triton.next_power_of_2(rank), dtype=torch.float64)
        self._numbers, self._fresh, self._scales = new(4), new(2), new(2, rank)
        self._live, self._unit = new(dtype=torch.bool), new()
        self._A, self._M = pairs(rank, self._wide_d), pairs(rows, self._wide_k)
        self._units = new(rows).fill_(kernels.UNIT.value)
        self._cuts = {
            "P": cut_of(n, rank, d, k, deep=True),
            "HM": cut_of(n, 2 * rank, k, k, deep=True),
            "S": cut_of(n, rank, k, rows, deep=True),
            "XQ": cut_of(n, rank, k, d, deep=True),
        }
        self._P = new(self._cuts["P"][2], rank, k)
        self._HM_shares = new(self._cuts["HM"][2], rows, k)
        self._HM = summed(self._HM_shares)
        self._HM_pairs, self._HM_units = pairs(rows, self._wide_k), new(rows)
        self._S_shares = new(self._cuts["S"][2], rank, rows)
        self._S = summed(self._S_shares)
        self._panel, self._R = new(ROWS, padded(rank)), new(rank, rows)
        self._K, self._out = new(3 * rank + 1, rank), new(3 * rank + 1, k)
        self._T = pairs(_tiles(rank, PADDED) * PADDED, self._wide_k)
        self._T_units = new().fill_(kernels.UNIT.value)
        self._Q, self._Q_units = pairs(rank, self._wide_k), new(rank).fill_(kernels.UNIT_OF_Q.value)
        self._XQ, self._A_new = new(self._cuts["XQ"][2], rank, d), new(rank, d)
        self._first: dict[tuple[Any, ...], list[Launch]] = {}
        self._rest = Repeated(self._make(X))

    def fits(self, X: Tensor, rank: int, state: tuple[Tensor, Tensor, Tensor]) -> bool:
        """Whether all is where it was, and as exact."""
        return rank == self._rank and _place(X, state) == self._place

    def __call__(
        self, A: Float[Tensor, "n d r"], B: Float[Tensor, "n k r"]
    ) -> tuple[Float[Tensor, "n d r"], Float[Tensor, "n k r"]]:
        """As the reference, but that the first factor is NaN where something was not finite.

        Args:
            A: Left factors of the gradient.
            B: Right factors.

        Returns:
            In memory that the next call overwrites.
        """
        layout = (*A.stride(), A.data_ptr() % 16, *B.stride(), B.data_ptr() % 16)
        first = self._first.get(layout)
        if first is None:
            first = self._first[layout] = self._take(A, B)
        device = A.device
        with on(device):
            on_cuda = device.type == "cuda"
            stream = torch._C._cuda_getCurrentRawStream(device.index) if on_cuda else 0
            for launch in first:
                launch.move("A_ptr", A)
                launch.move("B_ptr", B)
                launch({}, stream)
            self._rest(device)
        return self._A_new.mT, self._out[:, self._rank : 2 * self._rank].mT

    def _take(self, A: Tensor, B: Tensor) -> list[Launch]:
        """The launches that read the factors, and what has to come between them."""
        (n, d, k), rank, (H, numbers, v) = self._shape, self._rank, self._state
        wide = self._sums.shape[-1]
        shared: dict[str, Any] = {
            "A_ptr": A, "B_ptr": B, "stride_a": A.stride(), "stride_b": B.stride(),
            "numbers_ptr": self._numbers, "fresh_ptr": self._fresh, "scales_ptr": self._scales,
            "unit_ptr": self._unit, "state_ptr": numbers, "sums_ptr": self._sums, "H_ptr": H,
            "v_ptr": v, "A_out_ptr": self._A, "M_ptr": self._M, "n": n, "d": d, "k": k,
            "rank": rank, "wide_d": self._wide_d, "wide_k": self._wide_k,
            "A_low": self._A.stride(1), "M_low": self._M.stride(1), "SHARES": SHARES, "WIDE": wide,
            "most": float(LARGEST_GRADIENT[torch.float32]), "growth": GROWTH,
            "part": (DAMPING / k) ** 0.5, "longer": lengthening(k, rank),
            "rounding": ROUNDING * torch.finfo(torch.float32).eps, "even": k**-0.5,
            "HIGH": HIGH, "BLOCK": BLOCK,
        }  # fmt: skip
        tile = {**shared, "WIDE": WIDE}
        taken = n * _tiles(rank, HIGH) * (_tiles(d, WIDE) + _tiles(k, WIDE))
        return [
            Launch(kernels._squares, 2 * n * SHARES, shared, num_warps=4),
            Launch(kernels._decide, n, shared, num_warps=8),
            Launch(kernels._begin, n * _tiles(k, HIGH), tile, num_warps=4),
            Launch(kernels._take, taken, tile, num_warps=4),
        ]

    def _make(self, X: Float[Tensor, "n d k"]) -> list[Launch]:
        """The launches after them."""
        (n, d, k), rank, (H, numbers, v) = self._shape, self._rank, self._state
        cuts = self._cuts
        shared: dict[str, Any] = {
            "M_ptr": self._M, "P_ptr": self._P, "v_ptr": v, "R_ptr": self._R, "S_ptr": self._S,
            "numbers_ptr": self._numbers, "K_ptr": self._K, "out_ptr": self._out, "T_ptr": self._T,
            "HM_ptr": self._HM, "H_ptr": H, "state_ptr": numbers, "fresh_ptr": self._fresh,
            "live_ptr": self._live, "Q_ptr": self._Q, "n": n, "d": d, "k": k, "rank": rank,
            "wide_d": self._wide_d, "wide_k": self._wide_k, "T_low": self._T.stride(1),
            "M_low": self._M.stride(1), "Q_low": self._Q.stride(1), "A_low": self._A.stride(1),
            "eps": torch.finfo(torch.float32).eps, "SHARES": cuts["P"][2],
            "HIGH": HIGH, "WIDE": WIDE, "BLOCK": 32,
        }  # fmt: skip
        left, coarse = self._units[:, :rank], is_coarse(X)
        launches = [product_of(self._P, self._A, left, X, None, cuts["P"], coarse=coarse)]
        filled = n * _tiles(rank + 1, HIGH) * _tiles(k, WIDE)
        launches.append(Launch(kernels._fill, filled, shared, num_warps=4))
        shares, M, units = self._HM_shares[:, :, :-1], self._M[:, :, :-1], self._units[:, :-1]
        launches.append(product_of(shares, M, units, H, self._unit, cuts["HM"]))
        launches += sum_of(self._HM, self._HM_shares)
        tile = {**shared, "HIGH": 8, "WIDE": 512}
        launches.append(Launch(kernels._iterate, n * _tiles(k, 8), tile, num_warps=4))
        low = self._HM_pairs.stride(1)
        launches.append(split_of(self._HM_pairs[:, 0], self._HM_units, self._HM, low, 1, 1024))
        upper, right = self._M[:, :, :rank], self._HM_pairs.mT
        launches.append(product_of(self._S_shares, upper, left, right, self._HM_units, cuts["S"]))
        launches += sum_of(self._S, self._S_shares)
        launches.append(
            inverse_root_of(self._R, self._live, self._panel, self._S, self._numbers, rank)
        )
        small = n * _tiles(rank, 32) * _tiles(rank + 1, 32)
        launches.append(Launch(kernels._solve, small, shared, num_warps=4))
        small = n * _tiles(3 * rank + 1, 32) * _tiles(rank, 32)
        launches.append(Launch(kernels._coefficients, small, shared, num_warps=4))
        tile = {**shared, "HIGH": 128, "WIDE": 64, "DEPTH": 32}
        tiles = n * _tiles(3 * rank + 1, 128) * _tiles(k, 64)
        launches.append(Launch(kernels._outcome, tiles, tile, num_warps=4))
        T = Parts(self._T, self._T_units, rank, k)
        also: dict[str, Any] = {"live": self._live, "symmetric": True, "tiles": TILES[-1]}
        launches.append(product_of_parts(H, None, T.mT, T, H, -1.0, **also))
        launches.append(Launch(kernels._remember, n, {**shared, "BLOCK": BLOCK}, num_warps=8))
        tiles = n * _tiles(rank, HIGH) * _tiles(k, WIDE)
        launches.append(Launch(kernels._within, tiles, shared, num_warps=4))
        pairs = (self._Q, self._Q_units)
        launches.append(product_of(self._XQ, *pairs, X.mT, None, cuts["XQ"], coarse=coarse))
        tiles = n * _tiles(rank, HIGH) * _tiles(d, WIDE)
        given = {**shared, "out_ptr": self._A_new, "A_ptr": self._A, "XQ_ptr": self._XQ}
        given["SHARES"] = cuts["XQ"][2]
        launches.append(Launch(kernels._give, tiles, given, num_warps=4))
        return launches


def _place(X: Tensor, state: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """What the launches depend on besides the factors."""
    return (X.data_ptr(), *X.stride(), is_coarse(X), *(F.data_ptr() for F in state))


def _tiles(length: int, tile: int) -> int:
    return -(-length // tile)
