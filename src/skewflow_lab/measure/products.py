"""Simulates matrix products of low-precision units on any machine."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

BITS = {"tf32": 10, "bf16": 7}
"""Explicit bits of the mantissa that a factor of a product keeps."""

_PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.baddbmm.default,
    torch.ops.aten.mv.default,
}


class RoundedProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Round the factors of every float32 product, and accumulate in float32 (not in the paper).

    A GPU does so with TF32 switched on, and with bfloat16 factors. Products in float64 do not
    change, as on a GPU.

    Args:
        precision: "tf32" or "bf16".

    Example:
        >>> x = torch.tensor([[1 + 2**-11]])
        >>> with RoundedProducts("tf32"):
        ...     y = x @ torch.ones(1, 1)
        >>> y.item()
        1.0
    """

    def __init__(self, precision: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bits = BITS[precision]

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run `func`, its factors rounded if it is a product."""
        if func in _PRODUCTS:
            *added, A, B = args
            args = (*added, rounded(A, self.bits), rounded(B, self.bits))
        return func(*args, **(kwargs or {}))


def rounded(x: Tensor, bits: int) -> Tensor:
    """Float32 numbers, also the parts of complex ones, to the nearest of `bits` mantissa bits.

    Example:
        >>> rounded(torch.tensor([1 + 3 * 2**-8]), 7).item() == 1 + 2**-6
        True
    """
    if x.dtype == torch.complex64:
        return torch.view_as_complex(rounded(torch.view_as_real(x.resolve_conj()), bits))
    if x.dtype != torch.float32:
        return x
    drop = 23 - bits
    i = x.contiguous().view(torch.int32)
    half = (1 << (drop - 1)) - 1 + ((i >> drop) & 1)  # a tie goes to the even neighbour
    return ((i + half) & ~((1 << drop) - 1)).view(torch.float32)
