"""Haar-distributed points of O(d), SO(d) and ST(d, k)."""

import torch
from jaxtyping import Float
from torch import Tensor

from .. import _validate
from ..errors import ShapeError
from .precision import no_autocast
from .skew import check_dtype


@no_autocast()
def haar(
    d: int,
    k: int | None = None,
    *,
    special: bool = False,
    batch: tuple[int, ...] = (),
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "*batch d k"]:
    r"""A uniformly random point of ST(d, k), O(d) (`k` omitted) or SO(d) (`special`).

    The exact draw is not in the paper, which approaches it by a random flow (Sec. 9.9).

    Computes the QR decomposition of a Gaussian matrix and moves the signs of R's diagonal into Q,
    because LAPACK's Q by itself is *not* Haar-distributed (Mezzadri 2007). With `special`, one
    column is negated where the determinant is -1. Half precisions are drawn in float32 and rounded.

    Args:
        d: Number of rows.
        k: Number of orthonormal columns, at most `d`; `d` when omitted.
        special: Restrict to determinant +1 (k = d only).
        batch: Leading dimensions, for many points at once.
        generator: Source of randomness; torch's global one when omitted.
        dtype: Real floating dtype; torch's default when omitted.
        device: Device of the result; the generator's device when omitted.

    Example:
        >>> X = haar(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> bool(torch.allclose(X.mT @ X, torch.eye(3, dtype=torch.float64)))
        True
    """
    k = d if k is None else k
    if not 1 <= k <= d:
        raise ShapeError(
            f"ST(d, k) needs 1 <= k <= d: got d={d}, k={k}. "
            "For orthonormal rows draw ST(k, d) and transpose it."
        )
    if special and k != d:
        raise ShapeError(
            f"`special=True` needs k = d, a determinant: got d={d}, k={k}. "
            "For k < d ST(d, k) is connected, so leave `special` out."
        )
    if not isinstance(batch, tuple) or any(n < 1 for n in batch):
        raise ShapeError(
            f"`batch` must be a tuple of sizes >= 1: got {batch!r}. "
            "Write (n,) for n points and () for one."
        )
    check_dtype(dtype)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if generator is not None:
        _validate.generator(generator)
        device = generator.device if device is None else device
    work = dtype if dtype == torch.float64 else torch.float32
    Z = torch.randn(*batch, d, k, generator=generator, dtype=work, device=device)
    Q, R = torch.linalg.qr(Z)
    Q = Q * torch.where(R.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(work).unsqueeze(-2)
    if special:
        # The determinant is a product of pivots and underflows to zero from about 400 rows on.
        Q[..., 0] *= torch.linalg.slogdet(Q).sign.unsqueeze(-1)
    return Q.to(dtype).contiguous()  # LAPACK returns column-major storage
