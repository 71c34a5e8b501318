"""Projection onto ST(d, k): the nearest matrix with orthonormal columns."""

import torch
from jaxtyping import Float
from torch import Tensor

from .. import _validate
from .layouts import refuse_convolution
from .precision import no_autocast
from .retractions import HALVES


@no_autocast()
def project(X: Float[Tensor, "*batch d k"]) -> Float[Tensor, "*batch d k"]:
    r"""The polar factor $U V^\top$ of $X = U S V^\top$: the nearest point of ST(d, k).

    It is nearest in every unitarily invariant norm (not in the paper). It is unique when `X` has
    full column rank; otherwise it is one of several nearest points. On O(d) it keeps the sign of
    the determinant and thus the component. It costs one SVD, $O(dk^2)$. The backward pass of
    torch's SVD divides by differences of singular values, so the gradient is NaN where two of them
    coincide, as they do for an `X` that is already orthonormal.

    Example:
        >>> project(torch.tensor([[2.0, 0.0], [0.0, 0.5]]))
        tensor([[1., 0.],
                [0., 1.]])
    """
    refuse_convolution(X)
    _validate.tall(X)
    U, _, Vh = torch.linalg.svd(X.float() if X.dtype in HALVES else X, full_matrices=False)
    return (U @ Vh).to(X.dtype)
