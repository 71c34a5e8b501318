"""The example of a sharded transformer runs by torchrun, and goes on from its checkpoint."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import distributed

EXAMPLE = Path(__file__).parents[2] / "examples" / "fsdp2_transformer.py"


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="torch was built without gloo")
def test_the_transformer_goes_on_with_another_number_of_processes(tmp_path):
    for number, steps in ((2, "0 to 25"), (1, "25 to 50")):
        words = ["torch.distributed.run", "--standalone", f"--nproc-per-node={number}"]
        words += [EXAMPLE, tmp_path / "run", "25"]
        command, env = [sys.executable, "-m", *words], {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        assert f"steps {steps}: " in done.stdout
    right = float(done.stdout.split(": ")[1].split("%")[0])
    assert right > 30  # a guess is right for 10% of the digits
