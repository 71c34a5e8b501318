"""The polish on CUDA by products of float16 parts, which are as exact as float32."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..exact_polar._triton import BOUND
from ..multiply_parts._triton import gram_, product_of, split
from ..norms import frobenius


def polish_(X: Float[Tensor, "n d k"]) -> None:
    """See `reference.polish_`; products of cuBLAS may be less exact, these are not."""
    n, _, k = X.shape
    units = torch.empty(n, dtype=X.dtype, device=X.device)
    X_parts = split(X, BOUND, units)
    E = torch.empty(n, k, k, dtype=X.dtype, device=X.device)
    gram_(E, X_parts)
    E_parts = split(E, frobenius(E), torch.empty_like(units))
    out = X if X.is_contiguous() else torch.empty(X.shape, dtype=X.dtype, device=X.device)
    product_of(out, None, X_parts, E_parts, X, -0.5).once()
    if out is not X:
        X.copy_(out)
