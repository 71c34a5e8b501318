"""Products that do not inherit torch's switches for coarser float32 arithmetic."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")

EXACT = ("none", "ieee")
"""What the switches say where products are those of float32."""


class full_precision:  # noqa: N801
    """Matrix products in true float32, whatever the user's switches for CUDA and the CPU say.

    A residual of an orthogonal matrix computed in TF32 is 1e-3 for a perfect one. Switches that
    are right stay as they are: most steps find them so, and small ones would notice.
    """

    def __enter__(self) -> None:
        """Turn the switches that have to be turned."""
        backends = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
        self._before = [(b, b.fp32_precision) for b in backends if b.fp32_precision not in EXACT]
        for backend, _ in self._before:
            backend.fp32_precision = "ieee"

    def __exit__(self, *_: object) -> None:
        """Turn them back."""
        for backend, precision in self._before:
            backend.fp32_precision = precision


def is_coarse(X: Tensor) -> bool:
    """Whether the user lets products of such tensors run in TF32 on CUDA."""
    if X.device.type != "cuda" or X.dtype != torch.float32:
        return False
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def is_exact(X: Tensor) -> bool:
    """Whether torch computes products of such tensors in their own precision."""
    if X.dtype != torch.float32:
        return X.dtype == torch.float64
    on_cuda = X.device.type == "cuda"
    backend = torch.backends.cuda.matmul if on_cuda else torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    return backend.fp32_precision in EXACT


class no_autocast:  # noqa: N801
    """Products in the types of their factors, also where the user's autocast would round these.

    It is a context, and a decorator: ``@no_autocast()`` on a function whose result must be
    orthogonal, as bfloat16 products are orthogonal to 1e-2 only. Networks keep their autocast.
    """

    def __enter__(self) -> None:
        """Turn autocast off where it is on."""
        kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        self._off = [torch.autocast(kind, enabled=False) for kind in kinds]
        for off in self._off:
            off.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *reason: object) -> None:
        """Turn it on again."""
        for off in reversed(self._off):
            off.__exit__(*reason)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """The function, computed without autocast."""

        @wraps(function)
        def computed(*args: P.args, **kwargs: P.kwargs) -> T:
            with no_autocast():
                return function(*args, **kwargs)

        return computed


def users_precision(X: Tensor) -> AbstractContextManager[None]:
    """Products in TF32 where the user lets them be, in true float32 elsewhere.

    For what is corrected afterwards: rounding the direction of a step costs nothing, rounding its
    orthogonality costs everything.
    """
    return nullcontext() if is_coarse(X) else full_precision()
