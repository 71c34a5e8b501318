"""Products that do not inherit torch's TF32 switch."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_precision() -> Iterator[None]:
    """Matrix products in true float32 on CUDA, whatever the user's TF32 switch says.

    A residual of an orthogonal matrix computed in TF32 is 1e-3 for a perfect one.
    """
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = before
