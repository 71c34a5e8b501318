r"""Maps from Sk(d) to SO(d): the exponential, Cayley's and a truncated series (Sec. 2.1.1).

All three have derivative $+\Omega$ at zero, so they can stand for one another in
$X \leftarrow \Gamma(\eta\Omega) X$ (Eq. 4).
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .. import _validate
from ..errors import NonFiniteError, NotOnManifoldError
from .precision import no_autocast

HALVES = (torch.bfloat16, torch.float16)
"""Dtypes of 16 bits: their results are computed in float32 and rounded."""

LARGEST_SOLVE = 1e3
"""Largest norm of a skew matrix whose Cayley transform is computed by a linear solve. Up to this
norm the result is orthogonal to 4e-14 in float64; beyond it the error grows with the norm."""


@no_autocast()
def expm(A: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    r"""The matrix exponential, $\exp : Sk(d) \to SO(d)$, onto (Sec. 2.1.1).

    Scales and squares a Taylor polynomial of degree 16, which takes six products, because
    `torch.linalg.matrix_exp` loses five digits on a single matrix (3e-11 in float64, torch 2.13).
    Costs $O(d^3)$. The squarings amplify rounding: the result is orthogonal to about the dtype's
    eps times the norm of `A`. Half precisions are therefore computed in float32, and float32
    matrices of a norm above 100 in float64.

    Args:
        A: Square matrices; the result is a rotation when they are skew.

    Example:
        >>> A = torch.tensor([[0.0, torch.pi], [-torch.pi, 0.0]], dtype=torch.float64)
        >>> bool(torch.allclose(expm(A), -torch.eye(2, dtype=torch.float64)))
        True
    """
    _validate.square(A, "A")
    R = _scaled_taylor(_widen(A)).to(A.dtype)
    if not torch.isfinite(R).all():
        raise NonFiniteError(
            f"the exponential of `A` overflows: its largest entry is {A.abs().max().item():.1e} in "
            f"{A.dtype}. Lower the step size, or take the skew part if `A` should be skew."
        )
    return R


@no_autocast()
def cayley(A: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    r"""The Cayley transform with derivative $+A$: $(I - A/2)^{-1}(I + A/2)$.

    The paper prints $Y(\Omega) = (I + \Omega/2)^{-1}(I - \Omega/2)$ (Sec. 2.1.1), whose derivative
    is $-\Omega$: used in Eq. 4 it *descends* where the exponential ascends. Ours is $Y(-\Omega)$.
    It agrees with `expm` up to $O(\|A\|^3)$, rotates a plane by $2\arctan(\theta/2) < \pi$ instead
    of $\theta$, and never reaches a rotation with eigenvalue -1. Costs $O(d^3)$: one solve, or one
    SVD for a skew `A` of a norm above 1000, where a solve would lose orthogonality.

    Example:
        >>> cayley(torch.tensor([[0.0, 2.0], [-2.0, 0.0]]))
        tensor([[ 0.,  1.],
                [-1.,  0.]])
    """
    _validate.square(A, "A")
    wide = _widen(A)
    if wide.abs().sum(-1).amax() > LARGEST_SOLVE and torch.equal(wide, -wide.mT):
        R: Tensor = _LargeCayley.apply(wide)  # type: ignore[no-untyped-call]
        return R.to(A.dtype)
    H = wide / 2
    I = torch.eye(A.shape[-1], dtype=H.dtype, device=A.device)
    R, info = torch.linalg.solve_ex(I - H, I + H)
    if info.any():
        raise NotOnManifoldError(
            "the Cayley transform needs I - A/2 to be invertible, which holds for skew `A`: got "
            "a matrix with eigenvalue 2. Take its skew part with `geometry.skew(A)`."
        )
    return R.to(A.dtype)


@no_autocast()
def taylor(A: Float[Tensor, "*batch d d"], terms: int) -> Float[Tensor, "*batch d d"]:
    r"""The truncated series $\sum_{n=0}^{terms} A^n / n!$, without scaling.

    It exists only to reproduce how the series fails (Sec. 9.1.2, 9.3). The result is not
    orthogonal, and at a large norm cancellation destroys all digits however many terms are taken:
    in float64 the error is 4e-4 at norm 30 and above 1 at norm 40; in float32 it is above 1 at
    norm 20. Use `expm` for everything else.

    Example:
        >>> taylor(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), terms=2)
        tensor([[ 0.5000,  1.0000],
                [-1.0000,  0.5000]])
    """
    _validate.square(A, "A")
    if isinstance(terms, bool) or not isinstance(terms, int) or terms < 0:
        raise ValueError(
            f"`terms` must be a whole number >= 0: got {terms!r}. "
            "It is the highest power of `A` in the sum; 0 gives the identity."
        )
    term = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand_as(A)
    total = term
    for n in range(1, terms + 1):
        term = term @ A / n
        total = total + term
    return total


class _LargeCayley(torch.autograd.Function):
    r"""The Cayley transform of skew matrices, orthogonal up to rounding for every norm.

    $I - A/2$ is normal, so its polar factor V gives $(I - A/2)^{-1}(I + A/2) = (V^\top)^2$, and an
    SVD finds V. The derivative of the SVD does not exist, as the singular values of a skew matrix
    come in pairs; that of the transform is $N\,dA\,N$ with $N = (I - A/2)^{-1} = (R + I)/2$.
    """

    @staticmethod
    def forward(ctx: Any, A: Tensor) -> Tensor:
        I = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        U, _, Vh = torch.linalg.svd(I - A / 2)
        V = U @ Vh
        R = V.mT @ V.mT
        ctx.save_for_backward(R)
        return R

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Tensor:
        (R,) = ctx.saved_tensors
        N = (R + torch.eye(R.shape[-1], dtype=R.dtype, device=R.device)) / 2
        return N.mT @ G @ N.mT


def _scaled_taylor(A: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    """The exponential: the polynomial of `A` scaled to a norm of at most 1/2, then squared."""
    norm = A.detach().abs().sum(-1).amax().item()
    squarings = math.ceil(math.log2(2 * norm)) if norm > 0.5 else 0
    E = _polynomial(A * 0.5**squarings)
    for _ in range(squarings):
        E = E @ E
    return E


def _polynomial(A: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    """The series up to A^16; at norms of at most 1/2 its truncation error is 2e-20."""
    A2 = A @ A
    A3, A4 = A2 @ A, A2 @ A2
    I = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)

    def cubic(n: int) -> Tensor:
        """The terms n to n + 3 of the series, divided by A^n."""
        a, b, c, d = (1 / math.factorial(n + m) for m in range(4))
        return a * I + b * A + c * A2 + d * A3

    E = cubic(12) + A4 / math.factorial(16)
    for n in (8, 4, 0):
        E = E @ A4 + cubic(n)
    return E


def _widen(A: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    """`A` in a precision that suits its norm: the error of both maps grows with the norm."""
    if A.dtype == torch.float64:
        return A
    A = A.float()
    norm = A.abs().sum(-1).amax()  # bounds the spectral norm of a skew matrix
    return A.double() if norm > 100 else A
