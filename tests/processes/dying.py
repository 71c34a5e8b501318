"""One of two processes; the second one dies in the middle of a run that has saved a checkpoint."""

import os
import sys
from datetime import timedelta

import torch
from torch import distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions

from processes.models import run, save, saved_model
from processes.shards import mesh_of


def main(rank, folder, place):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    model, *optimizers = saved_model(mesh_of(2))
    run(model, optimizers, 4, seed=1)
    save(model, optimizers, f"{folder}/last", StateDictOptions(flatten_optimizer_state_dict=True))
    dist.barrier()
    if rank == 1:
        os._exit(7)
    if place == "forward pass":
        run(model, optimizers, 3, seed=2)
    weights = [p for group in optimizers[0].param_groups for p in group["params"]]
    before = [p.detach().to_local().clone() for p in weights]
    for p in weights:
        p.grad = torch.ones_like(p)
    try:
        optimizers[0].step()
    finally:
        assert all(torch.equal(p.to_local(), q) for p, q in zip(weights, before, strict=True))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
