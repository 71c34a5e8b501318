"""Convolutions in parts whose strides allow no view as matrices, against whole ones."""

from functools import partial

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from processes.models import compare, doubled
from processes.shards import OPTIMIZERS, mesh_of, start, stepped
from skewflow.distributed import shard_placement
from skewflow.geometry import orthogonality_error
from skewflow.geometry.matrices import as_matrices
from skewflow.nn import mark_orthogonal
from skewflow.optim import FlowSGD, split_parameters


class Convolutions(nn.Module):
    """Convolutions of one and two dimensions, and transposed ones."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Conv1d(4, 6, 3), nn.ConvTranspose1d(6, 4, 3)
        self.last = nn.ConvTranspose2d(4, 6, 2)
        for layer in self.children():
            mark_orthogonal(layer, "weight")
        doubled(self)

    def forward(self, x):
        x = self.down(self.up(x).tanh()).tanh()
        return self.last(x[:, :, None])


def transposed(kind, steps):
    """Under `fully_shard`, with the placement of the helper."""
    whole, model, mesh = Convolutions(), Convolutions(), mesh_of(2)
    before = whole.last.weight.detach().clone()
    fully_shard(model, mesh=mesh, shard_placement_fn=shard_placement(model, mesh, steps=steps))
    cls, options = OPTIMIZERS[kind]
    for each in (whole, model):
        ours, _ = split_parameters(each)
        flow = cls(ours, lr=0.01, block_size=4 if steps == "blocks" else "dense", **options)
        generator = torch.Generator().manual_seed(1)
        for _ in range(20):
            x = torch.randn(6, 4, 8, generator=generator, dtype=torch.float64)
            (each(x).square() - 1).square().mean().backward()
            flow.step()
            flow.zero_grad()
    assert float((whole.last.weight - before).abs().max()) > 1e-3
    return compare(whole, model, 1e-12)


def channels_last(dim, size):
    """A weight whose channels come last in memory, and its check of the manifold."""
    W, generator = start((6, 4, 3, 3))
    W, mesh = W.to(memory_format=torch.channels_last), mesh_of(2)
    place = partial(distribute_tensor, device_mesh=mesh, placements=[Shard(dim)])
    p, q = nn.Parameter(place(W)), nn.Parameter(W.clone())
    both = [FlowSGD([w], lr=0.01, momentum=0.9, block_size=size, check_every=2) for w in (p, q)]
    stepped(both, (p, q), W.shape, 12, generator, W.dtype, place)
    error = float((p.detach().full_tensor() - q.detach()).abs().max())
    assert error <= 1e-12, error
    assert float((q.detach() - W).abs().max()) > 1e-3
    p.detach().mul_(1 + 1e-6)  # the guard polishes a quarter a step; exact steps need none
    for _ in range(6):
        both[0].step()
    X = as_matrices(p.detach().full_tensor())
    assert float(orthogonality_error(X).max()) < 1e-11
    return error


def checks():
    """Every check by its name."""
    named = {
        f"transposed convolutions, {kind}, {steps}": partial(transposed, kind, steps)
        for kind, steps in (("momentum", "blocks"), ("momentum", "exact"), ("adam", "blocks"))
    }
    for dim, size in ((0, 4), (1, "dense")):
        named[f"channels last, {size}"] = partial(channels_last, dim, size)
    return named
