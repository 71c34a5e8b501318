"""FlowSGD in data-parallel training, and its word on sharded weights."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from helpers import EPS
from nets import Net
from skewflow.geometry import orthogonality_error
from skewflow.optim import FlowSGD, split_parameters


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


@pytest.mark.bad_input
@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch was built without gloo")
def test_sharded_weights_are_refused_by_name_with_the_way_out():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        sharded = fully_shard(Net(), mesh=mesh)
        ours, _ = split_parameters(sharded, "turn.weight")
        with pytest.raises(
            TypeError, match=r"turn\.weight must be a whole.*DTensor.*ignored_params"
        ):
            FlowSGD(ours, lr=0.1)
        model = Net()
        fully_shard(model, mesh=mesh, ignored_params={model.turn.weight})
        ours, _ = split_parameters(model, "turn.weight")
        FlowSGD(ours, lr=0.1)
    finally:
        dist.destroy_process_group()
