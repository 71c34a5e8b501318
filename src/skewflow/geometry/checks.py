"""Membership checks for ST(d, k), SO(d), Sk(d) and tangent spaces; each says why it fails."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from .. import _validate
from ..errors import NotOnManifoldError
from .layouts import refuse_convolution
from .precision import full_precision, no_autocast

TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.bfloat16: 5e-2,
    torch.float16: 1e-2,
}
"""Largest error of an entry that a check accepts by default; a long run's rounding is smaller."""


class Check(NamedTuple):
    """The result of a membership check: whether it holds and, if not, why (not in the paper).

    ``bool(check)`` is ``check.ok``. The reason is empty when the check holds.

    Example:
        >>> Check(True, ""), bool(Check(False, "`X` is not square."))
        (Check(ok=True, reason=''), False)
    """

    ok: bool
    reason: str

    def __bool__(self) -> bool:
        return self.ok


@no_autocast()
def orthogonality_error(X: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch"]:
    r"""$\|X^\top X - I\|_F$ of each matrix (not in the paper).

    Half-precision entries are converted to float32 first, so the result is the error of the stored
    matrix. `nn.orthogonality_error` measures any weight (wide, convolution) or a whole model.

    Example:
        >>> orthogonality_error(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        tensor(3.)
    """
    refuse_convolution(X)
    _validate.tall(X)
    X = X if X.dtype == torch.float64 else X.float()
    k = X.shape[-1]
    with full_precision():
        residual = X.mT @ X - torch.eye(k, dtype=X.dtype, device=X.device)
    return torch.linalg.matrix_norm(residual)


@no_autocast()
def check_stiefel(X: Float[Tensor, "*batch d k"], tol: float | None = None) -> Check:
    r"""Whether every matrix has orthonormal columns: $\max|X^\top X - I| \le$ `tol` (Sec. 1).

    Args:
        X: Candidate points.
        tol: Largest allowed entry of the residual; depends on the dtype when omitted.

    Example:
        >>> print(check_stiefel(2 * torch.eye(2)).reason)
        `X` is not orthonormal: max |X^T X - I| = 3.0e+00 exceeds 1e-04 for torch.float32. Call
        `geometry.project(X)` for the nearest orthonormal matrix.
    """
    refuse_convolution(X)
    _validate.tall(X)
    tol = TOLERANCE[X.dtype] if tol is None else tol
    Y = X if X.dtype == torch.float64 else X.float()
    with full_precision():
        residual = Y.mT @ Y - torch.eye(X.shape[-1], dtype=Y.dtype, device=X.device)
    error = residual.abs().amax().item()
    if error <= tol:
        return Check(True, "")
    return Check(
        False,
        f"`X` is not orthonormal: max |X^T X - I| = {error:.1e} exceeds {tol:.0e} for {X.dtype}. "
        "Call `geometry.project(X)` for the nearest orthonormal matrix.",
    )


@no_autocast()
def check_special(X: Float[Tensor, "*batch d d"], tol: float | None = None) -> Check:
    """Whether every matrix is a rotation: orthogonal with determinant +1 (Sec. 1).

    Example:
        >>> check_special(torch.tensor([[0.0, 1.0], [1.0, 0.0]])).ok
        False
    """
    _validate.square(X, "X")
    orthonormal = check_stiefel(X, tol)
    if not orthonormal:
        return orthonormal
    # The determinant is a product of pivots and underflows to zero from about 400 rows on.
    sign = torch.linalg.slogdet(X if X.dtype == torch.float64 else X.float()).sign
    negative = int((sign < 0).sum())
    if negative == 0:
        return Check(True, "")
    return Check(
        False,
        f"`X` is not in SO(d): {negative} of its matrices have determinant -1. "
        "Negate one column (or one row) of those to reach the other component of O(d).",
    )


def check_skew(A: Float[Tensor, "*batch d d"], tol: float | None = None) -> Check:
    r"""Whether every matrix lies in Sk(d), the skew matrices (Sec. 2.1).

    That is, $\max|A + A^\top| \le$ `tol` times the largest entry.

    Example:
        >>> check_skew(torch.eye(2)).ok
        False
    """
    _validate.square(A, "A")
    tol = TOLERANCE[A.dtype] if tol is None else tol
    error = (A + A.mT).abs().amax().item()
    size = A.abs().amax().item()
    if error <= tol * size:
        return Check(True, "")
    return Check(
        False,
        f"`A` is not skew-symmetric: max |A + A^T| = {error:.1e} exceeds {tol:.0e} times its "
        f"largest entry for {A.dtype}. Take its skew part with `geometry.skew(A)`.",
    )


@no_autocast()
def check_tangent(
    X: Float[Tensor, "*batch d k"], Z: Float[Tensor, "*batch d k"], tol: float | None = None
) -> Check:
    r"""Whether `Z` is tangent at `X`: $X^\top Z$ is skew (Lemma 2.3).

    Example:
        >>> check_tangent(torch.eye(2), torch.tensor([[0.0, 1.0], [-1.0, 0.0]])).ok
        True
    """
    _validate.tall(X)
    _validate.like(Z, X, "Z", "X")
    tol = TOLERANCE[X.dtype] if tol is None else tol
    with full_precision():
        S = X.mT @ Z if X.dtype == torch.float64 else X.float().mT @ Z.float()
    error = (S + S.mT).abs().amax().item()
    size = Z.abs().amax().item()
    if error <= tol * size:
        return Check(True, "")
    return Check(
        False,
        f"`Z` is not tangent at `X`: max |X^T Z + Z^T X| = {error:.1e} exceeds {tol:.0e} times "
        f"its largest entry for {X.dtype}. Project it with `geometry.tangent_project(X, Z)`.",
    )


def require(check: Check) -> None:
    """Raise `NotOnManifoldError` with the check's reason unless it holds (not in the paper).

    Example:
        >>> require(check_stiefel(torch.eye(2)))
    """
    if not check:
        raise NotOnManifoldError(check.reason)
