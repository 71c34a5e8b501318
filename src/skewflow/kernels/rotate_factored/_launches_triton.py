"""The memory and the launches of factored steps on CUDA, for weights of one shape."""

from contextlib import nullcontext
from typing import Any

import torch
import triton
from jaxtyping import Bool, Float
from torch import Tensor

from .._triton import Launch
from . import _triton as kernels
from .reference import LONGEST, coefficients, longest_for, num_rounds

DEPTH = 32
"""Of the tiles of the factors."""

BLOCK = 1024
"""Sums of shares that a program adds up."""

ENOUGH, MANY = 128, 256
"""Programs that keep the device busy, and how many are aimed at where sums can be split."""

LARGEST_LR: float = torch.finfo(torch.float32).max


class Workspace:
    r"""What the launches of one shape share, one weight after the other.

    Args:
        X: A point (n, d, k) of that shape.
        rank: r; it is rounded up, and the rows that are added stay zero.
        has_v: V is given, too.
        has_ax: $A^\top X$ is given.
    """

    def __init__(self, X: Float[Tensor, "n d k"], rank: int, *, has_v: bool, has_ax: bool) -> None:
        self.size = padded(rank)
        self._n, self._d, self._k = X.shape
        n, d, k, r, size = self._n, self._d, self._k, self.size // 2, self.size
        rows = r if has_ax else size
        self._block = _block(size)
        self._tiles = (size // self._block) ** 2

        def new(*shape: int) -> Tensor:
            return torch.zeros(n, *shape, dtype=torch.float32, device=X.device)

        self._L = new(size, d)
        self._B, self._checks = new(r, k), new(r, 2)
        self._AX = new(r, k) if has_ax else None
        self._has_v = has_v
        self._M, self._T = new(size, size), new(rows, k)
        self._shares = [new(_cut(n, a, d, c)[2], a, c) for a, c in ((size, size), (rows, k))]
        self._MW, self._JT, self._C = new(size, 2 * size), new(size, k), new(size, k)
        self._W2, self._P = new(size, size), (new(size, size), new(size, size))
        self._norms, self._scales = new(self._tiles), new(size + 1)
        self._launches: dict[tuple[int, ...], list[Launch]] = {}

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
    ) -> Bool[Tensor, "n"]:
        r"""Step in place; returns which factors were finite, and V that of this X.

        Args:
            X: Points, which stay as they are where the factors were not usable.
            A: Left factors.
            B: Right factors.
            lr: Step size.
            V: X B, if it was announced.
            AX: $A^\top X$, if it was announced.
            row: The row of X in which V is checked.
            tolerance: How far it may be off, relative to B.
        """
        half = self.size // 2
        _fill(self._L[:, :half], A.mT)
        _fill(self._B, B.mT)
        if V is not None:
            _fill(self._L[:, half:], V.mT)
        if AX is not None and self._AX is not None:
            _fill(self._AX, AX)
        place = (X.data_ptr(), *X.stride())
        if place not in self._launches:
            if len(self._launches) == MANY:  # points that are copies move from step to step
                self._launches.clear()
            self._launches[place] = self._make(X)
        numbers = {"lr": -min(lr, LARGEST_LR), "row": row, "tolerance": tolerance}
        on_cuda = X.device.type == "cuda"
        with torch.cuda.device(X.device) if on_cuda else nullcontext():
            stream = torch._C._cuda_getCurrentRawStream(X.device.index) if on_cuda else 0
            for launch in self._launches[place]:
                launch(numbers, stream)
        return torch.isfinite(self._scales[:, -1])

    def _make(self, X: Float[Tensor, "n d k"]) -> list[Launch]:
        n, d, k, size, half = self._n, self._d, self._k, self.size, self.size // 2
        L, launches = self._L, []
        sizes: dict[str, Any] = {"size": size, "k": k, "d": d, "tiles": self._tiles}
        strides = dict(zip(("stride_xn", "stride_xi", "stride_xj"), X.stride(), strict=True))
        if self._has_v:
            checked: dict[str, Any] = {"checks_ptr": self._checks, "L_ptr": L, "B_ptr": self._B}
            checked |= {"X_ptr": X, **sizes, **strides, "HIGH": 4, "WIDE": 256}
            launches.append(Launch(kernels._check, n * _tiles(half, 4), checked))
        else:  # V^T = B^T X^T, into the lower half of L^T
            launches.append(_product(L[:, None, half:], self._B, X.mT, _cut(n, half, k, d, 1)))
        rows = L if self._AX is None else L[:, half:]
        pairs = (self._M, L, L.mT), (self._T, rows, X)
        for shares, (out, left, right) in zip(self._shares, pairs, strict=True):
            cut = _cut(n, left.shape[1], d, right.shape[2])
            launches.append(_product(shares, left, right, cut))
            added = {"out_ptr": out, "shares_ptr": shares, "length": out[0].numel()}
            added |= {"SHARES": shares.shape[1], "BLOCK": BLOCK}
            programs = n * _tiles(out[0].numel(), BLOCK)
            launches.append(Launch(kernels._add_shares, programs, added))
        shared: dict[str, Any] = {
            "scales_ptr": self._scales,
            "norms_ptr": self._norms,
            "MW_ptr": self._MW,
            "JT_ptr": self._JT,
            "W2_ptr": self._W2,
            "C_ptr": self._C,
            "L_ptr": L,
            **sizes,
            "longest": LONGEST,
            "TILES": triton.next_power_of_2(self._tiles),
            "DEPTH": DEPTH,
        }
        high, wide = 32, 64
        programs = n * _tiles(size, high) * (_tiles(size, wide) + _tiles(k, wide))
        sums = {"M_ptr": self._M, "T_ptr": self._T, "AX_ptr": self._AX}
        sums |= {"checks_ptr": self._checks}
        options = {"HALF": triton.next_power_of_2(half), "HIGH": high, "WIDE": wide}
        options |= {"HAS_V": self._has_v, "HAS_AX": self._AX is not None}
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
        programs = n * _tiles(size, 64) * _tiles(k, 64)
        launches.append(Launch(kernels._combine, programs, last, num_warps=4))
        tile, *_ = _cut(n, d, size, k, 1)
        applied = {**shared, **strides, "X_ptr": X, "BLOCK": tile}
        programs = n * _tiles(d, tile) * _tiles(k, tile)
        launches.append(Launch(kernels._apply, programs, applied, num_warps=tile // 16))
        return launches


def padded(rank: int) -> int:
    """2r, rounded up to whole tiles."""
    block = _block(2 * rank)
    return -(-2 * rank // block) * block


def _block(size: int) -> int:
    """Rows of the tiles of small matrices: more of them when there are few."""
    return 32 if size < 512 else 64


def _fill(rows: Tensor, given: Tensor) -> None:
    """Copy the given rows, and fill up with zeros."""
    r = given.shape[1]
    rows[:, :r].copy_(given)
    if r < rows.shape[1]:
        rows[:, r:].zero_()


def _tiles(length: int, tile: int) -> int:
    return -(-length // tile)


def _cut(n: int, a: int, b: int, c: int, most: int | None = None) -> tuple[int, int, int]:
    """The tile of a product (a, b) (b, c), and how its sums are split: length and number.

    A split sum has shares of at least 256; `most` limits their number.
    """
    for tile in (128, 64):
        tiles = n * _tiles(a, tile) * _tiles(c, tile)
        splits = max(1, min(MANY // tiles, b // 256, most or b))
        if tiles * splits >= ENOUGH:
            break
    share = _tiles(_tiles(b, splits), DEPTH) * DEPTH
    return tile, share, _tiles(b, share)


def _product(out: Tensor, A: Tensor, B: Tensor, cut: tuple[int, int, int]) -> Launch:
    """A B, with the shares of its sums apart in `out` (n, splits, a, c)."""
    (n, a, b), c = A.shape, B.shape[-1]
    tile, share, splits = cut
    arguments = {
        "out_ptr": out, "A_ptr": A, "B_ptr": B, "a": a, "b": b, "c": c,
        "share": share, "splits": splits,
        "stride_out_n": out.stride(0) // splits, "stride_a_n": A.stride(0),
        "stride_b_n": B.stride(0), "stride_out": out.stride(2), "stride_a": A.stride(1),
        "stride_bi": B.stride(1), "stride_bj": B.stride(2),
        "HIGH": tile, "WIDE": tile, "DEPTH": DEPTH,
    }  # fmt: skip
    programs = n * splits * _tiles(a, tile) * _tiles(c, tile)
    return Launch(kernels._multiply, programs, arguments, num_warps=tile // 16)
