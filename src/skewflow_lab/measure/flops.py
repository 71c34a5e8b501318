"""Counts floating-point operations while the code runs.

The convention: a product of m x k and k x n matrices counts 2mkn; an addition, subtraction,
multiplication, division, square root or trigonometric function of one number counts 1; a sum of n
numbers counts n, a length 2n. Copying, indexing, changing signs, absolute values, comparisons and
drawing random numbers count 0, and so do operations on integers. A singular value decomposition
counts 14 m n^2 + 8 n^3 and a solve 2/3 n^3 + 2 n^2 m (Golub and Van Loan).
"""

from collections.abc import Callable
from math import inf, prod
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ONE = {"add", "sub", "mul", "div", "rsub", "sqrt", "cos", "sin", "exp", "log2", "reciprocal"}
_ONE |= {"pow", "square"}
_SUMS = {"sum", "mean"}
_FREE = {
    "abs",
    "neg",
    "amax",
    "amin",
    "aminmax",
    "max",
    "min",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "isfinite",
}
_FREE |= {"all", "any", "bitwise_and", "logical_and", "index", "index_put", "index_copy", "copy"}
_FREE |= {"clone", "detach", "view", "_unsafe_view", "reshape", "expand", "transpose", "permute"}
_FREE |= {"t", "select", "slice", "unbind", "unsqueeze", "squeeze", "stack", "cat", "diagonal"}
_FREE |= {"eye", "zeros", "ones", "empty", "fill", "zero", "_to_copy", "_local_scalar_dense"}
_FREE |= {"zeros_like", "ones_like", "new_zeros", "alias", "lift_fresh", "full", "where"}
_FREE |= {"gather", "index_select", "split", "arange", "clamp", "rand", "scalar_tensor"}


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the operations of everything that runs inside it, by the convention above.

    An operation without a rule raises an error, so that no operation is silently omitted.

    Example:
        >>> import torch
        >>> A = torch.ones(2, 3)
        >>> with FlopCounter() as counter:
        ...     B = A @ A.mT + 1
        >>> counter.total
        28
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run `func` and add what it counts."""
        out = func(*args, **(kwargs or {}))
        name: str = func._schema.name.removeprefix("aten::")  # type: ignore[attr-defined]
        self.total += _count(name.removesuffix("_") or name, args, kwargs or {}, out)
        return out


def flops(function: Callable[[], Any]) -> int:
    """The operations of one call."""
    with FlopCounter() as counter:
        function()
    return counter.total


def _count(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    if name in ("mm", "bmm"):
        return 2 * int(out.numel()) * int(args[0].shape[-1])
    if name == "baddbmm":
        return 2 * int(out.numel()) * int(args[1].shape[-1]) + int(out.numel())
    if name == "linalg_vector_norm":
        largest = len(args) > 1 and args[1] == inf
        return 0 if largest else 2 * int(args[0].numel())
    if name == "_linalg_svd":
        m, n = sorted(args[0].shape[-2:], reverse=True)
        return prod(args[0].shape[:-2]) * (14 * m * n**2 + 8 * n**3)
    if name == "_linalg_solve_ex":
        n, columns = args[1].shape[-2:]
        return prod(args[1].shape[:-2]) * (2 * n**3 // 3 + 2 * n**2 * columns)
    if name in _FREE or not _floating(out):
        return 0
    if name in _ONE:
        return int(out.numel()) * (2 if kwargs.get("alpha", 1) != 1 else 1)
    if name in _SUMS:
        return int(args[0].numel())
    raise NotImplementedError(
        f"no rule for counting {name!r}: add one to {__name__}, or to the operations that are free."
    )


def _floating(out: Any) -> bool:
    first = out[0] if isinstance(out, (tuple, list)) and out else out
    return isinstance(first, Tensor) and first.is_floating_point()
