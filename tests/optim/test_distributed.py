"""FlowSGD in data-parallel training."""

import subprocess
import sys
from pathlib import Path

import torch

from helpers import EPS
from skewflow.geometry import orthogonality_error


def test_data_parallel_ranks_keep_equal_weights_to_the_bit(tmp_path):
    worker = Path(__file__).with_name("ddp_worker.py")

    ranks = [
        subprocess.Popen(
            [sys.executable, str(worker), str(rank), str(tmp_path)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors
    finally:
        for process in ranks:
            process.kill()
    ends = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert not torch.equal(ends[0].pop("last"), ends[1].pop("last"))
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]), name
    assert (ends[0]["2.weight"] - ends[0]["start"]).norm() > 0.01
    assert orthogonality_error(ends[0]["2.weight"]) < EPS[torch.float32]
    for rank in range(2):  # the second optimiser had the rank as its seed, and said so once
        (warning,) = (tmp_path / f"{rank}.txt").read_text().splitlines()
        assert f"drift apart: rank {rank} has the seeds [{rank}], rank {1 - rank} has" in warning
