"""Reference of `multiply_where_` in plain torch."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def multiply_where_(
    out: Float[Tensor, "n a c"],
    A: Float[Tensor, "n a b"],
    B: Float[Tensor, "n b c"],
    live: Bool[Tensor, "n"],
    C: Float[Tensor, "n a c"] | None,
    alpha: float | Float[Tensor, "n"],
    beta: float,
) -> None:
    """See `multiply_where_` of the package; on CUDA this one computes all products."""
    product = A @ B
    if isinstance(alpha, Tensor):
        product *= alpha.to(product.dtype)[:, None, None]
    elif alpha != 1:
        product *= alpha
    if C is not None:
        product.add_(C, alpha=beta)
    if out.device.type == "cpu" and bool(live.all()):
        out.copy_(product)
    else:
        out.copy_(torch.where(live[:, None, None], product, out))
