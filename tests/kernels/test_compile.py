"""The CUDA kernels compile: the interpreter lets pass what the compiler does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize("variants", [[], pytest.param(["--all"], marks=pytest.mark.slow)], ids=str)
def test_every_kernel_compiles_for_a_gpu_that_is_not_here(variants, tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compile_all.py")), *variants],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    every = bool(variants)
    assert done.stdout.count("_rotate_rows") == (4 if every else 2)
    assert done.stdout.count("generate ") == (3 if every else 2)
    assert done.stdout.count("natural _inverse_root") == (2 if every else 1)
    assert done.stdout.count("\n_advance") == done.stdout.count("\n_retreat") == 2
    for name in (
        "_take",
        "_split",
        "_split_lower",
        "_multiply",
        "_balance",
        "_square",
        "_term",
        "_combine",
        "_apply",
    ):
        assert f"\n{name} " in done.stdout
    assert done.stdout.count("rounds _advance") == done.stdout.count("rounds _retreat") == 2
    assert done.stdout.count("multiply_where") == 2
    assert done.stdout.count("\npolar") == 5
    assert done.stdout.count("small polar") == (4 if every else 1)
    assert done.stdout.count("multiply_parts _split") == 2
    assert done.stdout.count("multiply_parts _multiply") >= 2
