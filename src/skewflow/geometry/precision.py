"""Contexts that keep TF32, bfloat16 products and autocast out of orthogonal arithmetic."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")

EXACT = ("none", "ieee")
"""Values of torch's precision switches that stand for true float32 products."""


class full_precision:  # noqa: N801
    """Context in which matrix products are true float32, whatever torch's switches say.

    Computed in TF32, the residual of a perfectly orthogonal matrix is 1e-3. Only switches with
    another value are written, because writing them takes a noticeable part of a small step.
    """

    def __enter__(self) -> None:
        """Set the switches that allow coarser products."""
        backends = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
        self._before = [(b, b.fp32_precision) for b in backends if b.fp32_precision not in EXACT]
        for backend, _ in self._before:
            backend.fp32_precision = "ieee"

    def __exit__(self, *_: object) -> None:
        """Restore them."""
        for backend, precision in self._before:
            backend.fp32_precision = precision


def is_coarse(X: Tensor) -> bool:
    """Whether torch multiplies tensors like `X` in TF32, which the user has then allowed."""
    if X.device.type != "cuda" or X.dtype != torch.float32:
        return False
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def is_exact(X: Tensor) -> bool:
    """Whether torch multiplies tensors like `X` in their own precision."""
    if X.dtype != torch.float32:
        return X.dtype == torch.float64
    on_cuda = X.device.type == "cuda"
    backend = torch.backends.cuda.matmul if on_cuda else torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    return backend.fp32_precision in EXACT


class no_autocast:  # noqa: N801
    """Context and decorator in which autocast is off.

    Functions whose result must be orthogonal have the decorator ``@no_autocast()``: products that
    autocast rounds to bfloat16 are orthogonal to 1e-2 only. The user's network keeps its autocast.
    """

    def __enter__(self) -> None:
        """Turn autocast off where it is on."""
        kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        self._off = [torch.autocast(kind, enabled=False) for kind in kinds]
        for off in self._off:
            off.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *reason: object) -> None:
        """Restore it."""
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
    """Context in which products are TF32 if the user allows it, and true float32 otherwise.

    It is for results that are corrected afterwards: a rounded direction of a step is harmless, a
    rounded orthogonality is not.
    """
    return nullcontext() if is_coarse(X) else full_precision()
