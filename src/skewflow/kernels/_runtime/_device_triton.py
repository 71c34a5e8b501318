"""Common Triton functions of a step: addresses of parameters, their momentum, their flags."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, valid-type"

import triton
import triton.language as tl

TABLE_COLUMNS = tl.constexpr(5)
"""Columns of `Table`: the addresses of X, G, M and P, and the stream."""


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
def load_step(done, replayed_ptr):
    """The number of steps before this one: those counted by the host plus those in replays."""
    if replayed_ptr is not None:
        done += tl.load(replayed_ptr)
    return done


@triton.jit
def is_live(live_ptr, param):
    """Whether the parameter takes the step; without a list every parameter does."""
    if live_ptr is not None:
        return tl.load(live_ptr + param) != 0
    else:
        return True


@triton.jit
def raise_flag(flags_ptr, param, bad):
    """Report to the host, in host memory, that a product of this parameter was not finite."""
    tl.store(flags_ptr + 1 + param, 1, mask=bad)
    tl.store(flags_ptr, 1, mask=bad)


@triton.jit
def load_scale(scale, moments_ptr, begin, i, j, mask, TYPE: tl.constexpr):
    """The factor from omega[i, j] to an angle: a common factor over the RMS of two row moments.

    The second moments of the matrix, if there are any, begin at `begin`.
    """
    factor = tl.full((), scale, TYPE)
    if moments_ptr is not None:
        w = tl.load(moments_ptr + begin + i, mask=mask, other=1.0)
        w += tl.load(moments_ptr + begin + j, mask=mask, other=1.0)
        return factor / tl.sqrt(0.5 * w.to(TYPE))
    else:
        return factor


@triton.jit
def load_momentum(
    G_ptr,
    M_ptr,
    offsets_g,
    offsets_m,
    mask,
    momentum,
    TYPE: tl.constexpr,
    HAS_M: tl.constexpr,
    MAXIMIZE: tl.constexpr,
):
    """The gradient of a tile, and its new momentum or again the gradient; writes nothing."""
    # The gradient is read only once, so it must not evict data that is read again.
    G = tl.load(G_ptr + offsets_g, mask=mask, other=0.0, eviction_policy="evict_first").to(TYPE)
    if MAXIMIZE:
        G = -G
    M = G
    if HAS_M:
        M = momentum * tl.load(M_ptr + offsets_m, mask=mask, other=0.0) + G
    return G, M


@triton.jit
def find_direction(G, M, momentum, HAS_M: tl.constexpr, NESTEROV: tl.constexpr):
    """`update.direction` from the gradient and the new momentum."""
    return G + momentum * M if HAS_M and NESTEROV else M


@triton.jit
def store_finite(ptr, offsets, A, mask):
    """Store the finite entries; the others keep their old values."""
    tl.store(ptr + offsets, A, mask=mask & (tl.abs(A) < float("inf")))


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
    """The direction of a tile; it writes the new momentum, so call it once for an element.

    A gradient that is not finite does not enter the momentum.
    """
    G, M = load_momentum(G_ptr, M_ptr, offsets_g, offsets_m, mask, momentum, TYPE, HAS_M, MAXIMIZE)
    if HAS_M:
        store_finite(M_ptr, offsets_m, M, mask)
    return find_direction(G, M, momentum, HAS_M, NESTEROV)
