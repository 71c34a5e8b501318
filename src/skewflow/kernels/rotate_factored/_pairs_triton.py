"""Launches of products of pairs of float16, whose rows have units of their own; how they are cut.

The kernels are in `_products_triton`; `_split_triton` says what pairs are.
"""

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from .._runtime._launch_triton import Launch
from ..multiply_parts._triton import Tiles
from . import _products_triton as products
from . import _split_triton as splits
from . import _triton as kernels

MULTIPLY, MULTIPLY_SMALL = Tiles(128, 64, 32, 8, 3), Tiles(64, 64, 32, 4, 3)
"""The small tiles are for products with few large ones. Each has two sums, that of the tensor cores
and the total: tiles of 128 x 128 would take so many registers that one program runs at a time."""

DEEP, DEEP_SMALL = Tiles(128, 64, 64, 8, 3), Tiles(64, 64, 64, 4, 3)
"""For products whose errors change where a step goes, but not that it is a rotation: twice as many
terms stay in the tensor cores, which is faster."""

BLOCK = 1024
"""Sums of shares that a program adds up."""

ENOUGH, MANY = 128, 256
"""Programs that keep the device busy, and how many are aimed at where sums can be split."""


def fours(*lengths: int) -> bool:
    """Whether all are multiples of four, which the compiler is to be told: 16 bytes at a time.

    It sees by itself which are multiples of 16.
    """
    return all(x % 4 == 0 for x in lengths) and any(x % 16 for x in lengths)


def layout_of(X: Float[Tensor, "n d k"]) -> dict[str, bool]:
    """What kernels are told about the way X lies in memory."""
    upright = X.stride(-2) == 1 != X.stride(-1)
    known = 1 in X.stride()[-2:]
    lengths = (*X.shape[-2:], X.stride(-1 if upright else -2), X.stride(0))
    return {"FOURS": known and fours(*lengths), "UPRIGHT": upright}


def cut_of(n: int, a: int, b: int, c: int, *, deep: bool = False) -> tuple[Tiles, int, int]:
    """The tiles of a product (a, b) (b, c), and how its sums are split: length and number.

    A split sum has shares of at least 256.
    """
    for tile in (DEEP, DEEP_SMALL) if deep else (MULTIPLY, MULTIPLY_SMALL):
        tiles = n * triton.cdiv(a, tile.high) * triton.cdiv(c, tile.wide)
        splits = max(1, min(MANY // tiles, b // 256))
        if tiles * splits >= ENOUGH:
            break
    share = triton.cdiv(triton.cdiv(b, splits), tile.depth) * tile.depth
    return tile, share, triton.cdiv(b, share)


def pairs_times(
    out: Float[Tensor, "n splits a c"],
    left: Float[Tensor, "n 2 a wide"],
    left_units: Float[Tensor, "n a"],
    right: Tensor,
    right_units: Float[Tensor, "n c"] | Float[Tensor, "n"] | None,
    cut: tuple[Tiles, int, int],
    *,
    coarse: bool = False,
) -> Launch:
    """Pairs times other pairs, or X, or matrices with units; the shares of the sums lie apart.

    Coarse products have the precision of TF32.
    """
    n, _, a, _ = left.shape
    (b, c), (tile, share, splits) = right.shape[-2:], cut
    pairs = right.dtype == torch.float16
    arguments = {
        "out_ptr": out, "left_ptr": left, "left_units_ptr": left_units, "right_ptr": right,
        "right_units_ptr": right_units, "a": a, "b": b, "c": c, "share": share, "splits": splits,
        "left_low": left.stride(1), "left_n": left.stride(0), "stride_left": left.stride(2),
        "left_units_n": left_units.stride(0), "right_low": right.stride(1),
        "right_units_n": 0 if right_units is None else right_units.stride(0),
        "right_n": right.stride(0), "stride_ri": right.stride(-2), "stride_rj": right.stride(-1),
        "stride_out": out.stride(2), "stride_out_n": out.stride(0) // splits,
        "SPLIT": pairs, "HAS_UNIT": right_units is not None and not pairs, "HIGH": tile.high,
        "WIDE": tile.wide, "DEPTH": tile.depth, "COARSE": coarse, **layout_of(right),
    }  # fmt: skip
    if pairs:  # whose rows are filled up
        arguments["FOURS"] = False
    programs = n * splits * triton.cdiv(a, tile.high) * triton.cdiv(c, tile.wide)
    return Launch(products._multiply, programs, arguments, **tile.options)


def summed(shares: Float[Tensor, "n shares a b"]) -> Float[Tensor, "n a b"]:
    """Memory for their sum: theirs, if there is one."""
    return shares[:, 0] if shares.shape[1] == 1 else torch.zeros_like(shares[:, 0])


def sum_of(out: Float[Tensor, "n a b"], shares: Float[Tensor, "n shares a b"]) -> list[Launch]:
    """The launch that adds up shares; none if there is one."""
    n, num, a, b = shares.shape
    arguments = {"out_ptr": out, "shares_ptr": shares, "length": a * b}
    arguments |= {"SHARES": num, "BLOCK": BLOCK}
    launch = Launch(kernels._add_shares, n * triton.cdiv(a * b, BLOCK), arguments)
    return [] if num == 1 else [launch]


def split_of(
    out: Float[Tensor, "n rows length"],
    units: Float[Tensor, "n rows"],
    given: Float[Tensor, "n rows length"],
    low: int,
    rows: int,
    wide: int,
) -> Launch:
    """Split some rows of a matrix; `low` is the way to the lower parts."""
    n, num, length = given.shape[0], out.shape[1], given.shape[2]
    arguments = {
        "out_ptr": out, "units_ptr": units, "given_ptr": given, "rows": num, "length": length,
        "low": low, "out_n": out.stride(0), "out_row": out.stride(1), "out_inner": out.stride(2),
        "units_n": units.stride(0), "given_n": given.stride(0), "given_row": given.stride(1),
        "given_inner": given.stride(2), "ROWS": rows, "WIDE": wide,
        "FOURS": given.stride(2) == 1 and fours(length, *given.stride()[:2]),
    }  # fmt: skip
    return Launch(splits._split, n * num // rows, arguments, num_warps=4)
