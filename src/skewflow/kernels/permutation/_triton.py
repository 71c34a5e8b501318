"""The keyed permutation inside a CUDA kernel, and the plumbing that the fused steps share.

The device functions draw the same rows as the reference, bit by bit. The host functions let one
launch reach many parameters of one shape: their addresses travel as a table on the device.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...tournaments.counting import edge_probability
from ..update import Update
from .reference import num_rounds

GOLDEN = tl.constexpr(0x9E3779B9)
TABLE_COLUMNS = tl.constexpr(5)  # the addresses of X, G, M and P, and the stream
NUM_TABLES = 64

TRITON_TYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


@triton.jit
def mix(x):
    """`reference.mix` on uint32, whose products wrap by themselves."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def make_key(seed, stream, time):
    """`reference.make_key` of int64 scalars: a uint32."""
    key = mix(seed.to(tl.uint32) ^ 0x243F6A88)
    key = mix(key ^ (seed >> 32).to(tl.uint32))
    key = mix(key ^ stream.to(tl.uint32))
    key = mix(key ^ time.to(tl.uint32))
    return mix(key ^ (time >> 32).to(tl.uint32))


@triton.jit
def _forward(x, key, BITS: tl.constexpr, NUM_ROUNDS: tl.constexpr):
    low: tl.constexpr = (BITS + 1) // 2
    left = x >> low
    right = x & ((1 << low) - 1)
    for _ in tl.static_range(NUM_ROUNDS):
        left = left ^ (mix(right ^ key) & ((1 << (BITS - low)) - 1))
        key += GOLDEN
        right = right ^ (mix(left ^ key) & ((1 << low) - 1))
        key += GOLDEN
    return (left << low) | right


@triton.jit
def _backward(x, key, BITS: tl.constexpr, NUM_ROUNDS: tl.constexpr):
    low: tl.constexpr = (BITS + 1) // 2
    left = x >> low
    right = x & ((1 << low) - 1)
    for _ in tl.static_range(2 * NUM_ROUNDS):
        key += GOLDEN
    for _ in tl.static_range(NUM_ROUNDS):
        key -= GOLDEN
        right = right ^ (mix(left ^ key) & ((1 << low) - 1))
        key -= GOLDEN
        left = left ^ (mix(right ^ key) & ((1 << (BITS - low)) - 1))
    return (left << low) | right


@triton.jit
def permute(x, d, key, BITS: tl.constexpr, NUM_ROUNDS: tl.constexpr, INVERSE: tl.constexpr = False):
    """Where the permutation of 0..d-1, or its inverse, sends each entry of a vector in 0..d-1.

    BITS and NUM_ROUNDS are those of `permutation_options(d)`; the result is int32.
    """
    x = x.to(tl.uint32)
    todo = x < d.to(tl.uint32)
    walking = d > 0
    while walking:
        if INVERSE:
            moved = _backward(x, key, BITS, NUM_ROUNDS)
        else:
            moved = _forward(x, key, BITS, NUM_ROUNDS)
        x = tl.where(todo, moved, x)
        todo = x >= d.to(tl.uint32)
        walking = tl.max(todo.to(tl.int32), axis=0) > 0
    return x.to(tl.int32)


@triton.jit
def load_key(table_ptr, first_stream, param, b, seed, time):
    """The key of matrix b of a parameter; without a table, it starts at `first_stream`."""
    if table_ptr is not None:
        first = tl.load(table_ptr + param * TABLE_COLUMNS + 4)
    else:
        first = first_stream.to(tl.int64)
    return make_key(seed.to(tl.int64), first + b, time)


@triton.jit
def find_round(step_ptr, d):
    """Which round of which sweep it is, and how many rounds a sweep has."""
    num_rounds = d - 1 + d % 2
    step = tl.load(step_ptr)
    return (step % num_rounds).to(tl.int32), step // num_rounds, num_rounds


@triton.jit
def find_pairs(q, d, r, num_rounds, key, BITS: tl.constexpr, NUM_ROUNDS: tl.constexpr):
    """The rows of the pairs number q, as `reference.matching_at`; for odd d, q = 0 is one row."""
    first, second = r + q, r - q
    first = tl.where(first >= num_rounds, first - num_rounds, first)
    second = tl.where(second < 0, second + num_rounds, second)
    second = tl.where((q == 0) & (d % 2 == 0), d - 1, second)
    i = permute(first, d, key, BITS, NUM_ROUNDS)
    return i.to(tl.int64), permute(second, d, key, BITS, NUM_ROUNDS).to(tl.int64)


@triton.jit
def find_partners(cols, d, r, num_rounds, key, BITS: tl.constexpr, NUM_ROUNDS: tl.constexpr):
    """The row that each row is paired with: on the circle x meets 2r - x, and r the centre."""
    x = permute(tl.where(cols < d, cols, 0), d, key, BITS, NUM_ROUNDS, INVERSE=True)
    y = 2 * r - x
    y = tl.where(y < 0, y + num_rounds, y)
    y = tl.where(y >= num_rounds, y - num_rounds, y)
    if d % 2 == 0:
        y = tl.where(x == r, d - 1, tl.where(x == d - 1, r, y))
    return permute(y, d, key, BITS, NUM_ROUNDS)


@triton.jit(do_not_specialize=["first_stream", "seed"])
def match_columns(
    partners_ptr,
    table_ptr,
    step_ptr,
    first_stream,
    seed,
    n,
    d,
    num_tiles,
    BITS: tl.constexpr,
    NUM_ROUNDS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    matrix = tl.program_id(0) // num_tiles
    cols = tl.program_id(0) % num_tiles * BLOCK_D + tl.arange(0, BLOCK_D)
    r, sweep, num_rounds = find_round(step_ptr, d)
    key = load_key(table_ptr, first_stream, matrix // n, (matrix % n).to(tl.int64), seed, sweep)
    partners = find_partners(cols, d, r, num_rounds, key, BITS, NUM_ROUNDS)
    tl.store(partners_ptr + matrix.to(tl.int64) * d + cols, partners, mask=cols < d)


@triton.jit
def choose(ptr, table_ptr, param, COLUMN: tl.constexpr, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """The address of a parameter's tensor: from the table if there is one, else `ptr` itself."""
    if table_ptr is not None:
        address = tl.load(table_ptr + param * TABLE_COLUMNS + COLUMN)
        ptr = address.to(tl.pointer_type(TYPE))
        if ALIGNED:  # or the loads would be of 4 bytes instead of 16
            ptr = tl.multiple_of(ptr, 16)
    return ptr


@triton.jit
def load_direction(
    G_ptr,
    M_ptr,
    offsets_g,
    offsets_m,
    mask,
    momentum,
    TYPE: tl.constexpr,
    HAS_M: tl.constexpr,
    NESTEROV: tl.constexpr,
    MAXIMIZE: tl.constexpr,
):
    """`update.direction` of a tile; it writes the new momentum, so call it once for an element."""
    # The gradient is not read again: it must not push out of the cache what is.
    D = tl.load(G_ptr + offsets_g, mask=mask, other=0.0, eviction_policy="evict_first").to(TYPE)
    if MAXIMIZE:
        D = -D
    if HAS_M:
        M = momentum * tl.load(M_ptr + offsets_m, mask=mask, other=0.0) + D
        tl.store(M_ptr + offsets_m, M, mask=mask)
        if NESTEROV:
            D += momentum * M
        else:
            D = M
    return D


def permutation_options(d: int) -> dict[str, int]:
    """The compile-time numbers of `permute`."""
    return {"BITS": max(1, (d - 1).bit_length()), "NUM_ROUNDS": num_rounds(d)}


@cache
def scale_of(d: int, block_size: int) -> float:
    """The weight 1 / P(e) of the uniform estimate."""
    return float(1 / edge_probability(d, block_size))


def common_arguments(
    Xs: Sequence[Tensor],
    Gs: Sequence[Tensor],
    Ms: Sequence[Tensor] | None,
    Ps: Sequence[Tensor] | None,
    update: Update,
    streams: Sequence[int],
) -> dict[str, Any]:
    """What every kernel that reads the gradient takes: pointers, strides, types and switches."""
    n, d, k = Xs[0].shape
    many = len(Xs) > 1
    table, aligned = _table(Xs, Gs, Ms, Ps, streams) if many else (None, False)
    return {
        "X_ptr": None if many else Xs[0],
        "G_ptr": None if many else Gs[0],
        "M_ptr": None if many or Ms is None else Ms[0],
        "P_ptr": None if many or Ps is None else Ps[0],
        "table_ptr": table,
        "first_stream": streams[0],
        "seed": update.seed,
        "momentum": update.momentum,
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
        "ALIGNED": aligned,
        "HAS_M": Ms is not None,
        "HAS_P": Ps is not None,
        "NESTEROV": update.nesterov,
        "MAXIMIZE": update.maximize,
        **permutation_options(d),
    }


def select(arguments: dict[str, Any], kernel: Any) -> dict[str, Any]:
    """Those of the arguments that a kernel takes."""
    return {name: arguments[name] for name in kernel.arg_names if name in arguments}


_tables: OrderedDict[Any, tuple[Tensor, bool, Any, int]] = OrderedDict()
_captured: list[tuple[Tensor, Tensor]] = []


def _table(
    Xs: Sequence[Tensor],
    Gs: Sequence[Tensor],
    Ms: Sequence[Tensor] | None,
    Ps: Sequence[Tensor] | None,
    streams: Sequence[int],
) -> tuple[Tensor, bool]:
    """The device table of addresses and streams, and whether all addresses allow wide loads.

    Equal addresses give the same table, so a set of parameters that stays put costs nothing.
    """
    device = Xs[0].device
    columns = [[t.data_ptr() for t in ts] if ts else [0] * len(Xs) for ts in (Xs, Gs, Ms, Ps)]
    key = (device, *map(tuple, columns), tuple(streams))
    on_cuda = device.type == "cuda"
    current = torch.cuda.current_stream(device) if on_cuda else None
    capturing = on_cuda and torch.cuda.is_current_stream_capturing()
    if key in _tables:
        _tables.move_to_end(key)
        table, aligned, copied, home = _tables[key]
        # A capture may not wait on an event from outside it; entering one synchronises anyway.
        if current is not None and current.cuda_stream != home and not capturing:
            current.wait_event(copied)
            table.record_stream(current)
        return table, aligned
    aligned = all(address % 16 == 0 for column in columns for address in column)
    rows = list(zip(*columns, streams, strict=True))
    host = torch.tensor(rows, dtype=torch.int64, pin_memory=on_cuda)
    if current is None:
        table, entry = host, (host, aligned, None, 0)
    else:
        table = host.to(device, non_blocking=True)
        if capturing:  # replays copy again from the host, and only they fill this table
            _captured.append((host, table))
            return table, aligned
        entry = (table, aligned, current.record_event(), current.cuda_stream)
    _tables[key] = entry
    if len(_tables) > NUM_TABLES:
        _tables.popitem(last=False)
    return table, aligned


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Of a CUDA device; a few for the interpreter, so that it, too, splits the work."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count
