"""A sharded transformer with orthogonal attention weights that learns to sort digits.

`torchrun --nproc-per-node 2 examples/fsdp2_transformer.py` saves a checkpoint. The next call
resumes from it, also with another number of processes.
"""

import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import skewflow as sf


def build():
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(2)]
    for layer in layers:
        sf.nn.mark_orthogonal(layer.self_attn, "in_proj_weight")
        sf.nn.mark_orthogonal(layer.self_attn.out_proj, "weight")
    model = nn.Sequential(nn.Embedding(80, 32), *layers, nn.Flatten(0, 1), nn.Linear(32, 10))
    place = sf.distributed.shard_placement(model)
    for module in (*layers, model):
        fully_shard(module, shard_placement_fn=place)
    orthogonal, rest = sf.optim.split_parameters(model)
    flow = sf.optim.FlowSGD(orthogonal, lr=0.01, momentum=0.9, block_size=8)
    return model, [flow, torch.optim.AdamW(rest, lr=3e-3)]


def main(folder: str = "runs/fsdp2_transformer", steps: int = 100) -> None:
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    model, optimizers = build()
    state = dict(zip("mo", get_state_dict(model, optimizers), strict=True))
    if Path(folder).exists():
        checkpoint.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizers, model_state_dict=state["m"], optim_state_dict=state["o"])
    begun = optimizers[0].param_groups[0]["step"]
    for step in range(begun, begun + steps):
        g = torch.Generator().manual_seed(step * size + rank)  # other digits in each process
        digits = torch.randint(10, (64, 8), generator=g)
        logits, wanted = model(digits + 10 * torch.arange(8)), digits.sort().values.flatten()
        nn.functional.cross_entropy(logits, wanted).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    state = dict(zip("mo", get_state_dict(model, optimizers), strict=True))
    checkpoint.save(state, storage_writer=checkpoint.FileSystemWriter(folder, overwrite=True))
    if rank == 0:
        right = (logits.argmax(-1) == wanted).float().mean().item()
        print(f"steps {begun} to {begun + steps}: {right:.0%} of the digits in place")


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
