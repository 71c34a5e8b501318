import os

import pytest
import torch

# Triton reads the variable when it is imported, which only the tests of its kernels do.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def poisoned_memory(monkeypatch):
    """Fresh memory holds NaN, or rows that do not exist, so that a cell left unwritten shows."""

    def poison(allocate):
        def allocate_poisoned(*args, **kwargs):
            tensor = allocate(*args, **kwargs)
            return tensor.fill_(torch.nan if tensor.is_floating_point() else 2**30)

        return allocate_poisoned

    monkeypatch.setattr(torch, "empty", poison(torch.empty))
    monkeypatch.setattr(torch.Tensor, "new_empty", poison(torch.Tensor.new_empty))


@pytest.fixture
def device():
    return "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
