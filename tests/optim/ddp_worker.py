"""One process of a data-parallel run; test_distributed.py starts two and compares their weights."""

import sys
import warnings
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from skewflow.nn import orthogonal_
from skewflow.optim import FlowSGD, split_parameters


def main(rank, folder):
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 10), nn.Linear(10, 2))
    orthogonal_(model[2].weight)
    parallel = DistributedDataParallel(model)
    ours, rest = split_parameters(model, "2.weight")
    optimizers = [
        FlowSGD(ours, lr=0.01, momentum=0.9, block_size=2, check_every=2),
        torch.optim.AdamW(rest, lr=0.01),
    ]
    start = model[2].weight.detach().clone()
    data = torch.Generator().manual_seed(1 + rank)  # every rank has its own examples
    for _ in range(5):
        x = torch.randn(8, 6, generator=data)
        for optimizer in optimizers:
            optimizer.zero_grad()
        (parallel(x) - x[:, :2]).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    torch.save({"start": start, "last": x, **model.state_dict()}, f"{folder}/{rank}.pt")
    parted = FlowSGD(ours, lr=0.01, block_size=2, seed=rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            dist.barrier()  # as the gradients of a step are exchanged
            parted.step()
    Path(folder, f"{rank}.txt").write_text("\n".join(str(each.message) for each in caught))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
