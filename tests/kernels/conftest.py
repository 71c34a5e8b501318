import os
import sys
from types import SimpleNamespace

import pytest
import torch

# Triton reads the variable when it is imported, which only the tests of its kernels do.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter():
    """Let Triton's interpreter patch its language once, and look up each dtype once.

    It does both at every call of a kernel, and at each call inside of one, which takes most of
    the time where kernels are small. The bits in `golden/triton.json` are the same without this.
    """
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None or os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    language = {"tl": interpreter.tl, "core": interpreter.tl.core}
    scope = interpreter._patch_lang(SimpleNamespace(__globals__=language))
    dtype_of, known = interpreter._get_np_dtype, {}

    def known_dtype_of(tt_dtype):
        if tt_dtype.name not in known:
            known[tt_dtype.name] = dtype_of(tt_dtype)
        return known[tt_dtype.name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", lambda fn: interpreter._LangPatchScope())
        patch.setattr(interpreter, "_get_np_dtype", known_dtype_of)
        yield
    scope.restore()


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
