"""One of four processes: what two cannot check, above all meshes of two dimensions."""

import sys
from functools import partial

from torch import nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from processes.shards import OPTIMIZERS, mesh_of, run_checks, says, start, stepped
from skewflow.optim import FlowSGD

PLACED = {  # shape, placements on a mesh of 2 x 2 or of 4, options
    "copies of columns": ((24, 10), [Replicate(), Shard(1)], {"block_size": 3}),
    "copies of rows": ((24, 10), [Replicate(), Shard(0)], {"block_size": "dense"}),
    "columns of columns": ((13, 10), [Shard(1), Shard(1)], {"block_size": 4}),
    "rows of rows": ((26, 5), [Shard(0), Shard(0)], {"block_size": "dense"}),
    "columns of a batch": ((3, 9, 6), [Shard(0), Shard(2)], {"block_size": 3}),
    "rows and columns": ((24, 10), [Shard(0), Shard(1)], {"block_size": 4, "gather": True}),
    "exact with rows and columns": ((24, 10), [Shard(0), Shard(1)], {"gather": True}),
    "uneven columns": ((13, 7), [Shard(1)], {"block_size": 4}),
    "uneven rows": ((13, 5), [Shard(0)], {"block_size": "dense"}),
    "an empty part of columns": ((12, 3), [Shard(1)], {"block_size": 4}),
    "empty parts of rows": ((5, 2), [Shard(0)], {"block_size": "dense"}),
}


def equal(name, kind):
    """The steps of the whole weight."""
    shape, placements, more = PLACED[name]
    mesh = mesh_of(4) if len(placements) == 1 else mesh_of(2, 2, mesh_dim_names=("a", "b"))
    (W, generator), (cls, options) = start(shape), OPTIMIZERS[kind]
    p, q = nn.Parameter(distribute_tensor(W, mesh, placements)), nn.Parameter(W.clone())
    both = [cls([w], lr=0.01, **options, **more) for w in (p, q)]
    place = partial(distribute_tensor, device_mesh=mesh, placements=placements)
    stepped(both, (p, q), shape, 20, generator, W.dtype, place)
    error = float((p.detach().full_tensor() - q.detach()).abs().max())
    assert error <= 1e-12, error
    assert float((q.detach() - W).abs().max()) > 1e-3
    return error


def refused():
    (W, _), mesh = start((24, 10)), mesh_of(2, 2, mesh_dim_names=("a", "b"))
    p = nn.Parameter(distribute_tensor(W, mesh, [Shard(0), Shard(1)]))
    for size in (4, "dense", "auto"):
        words = ["splits both rows and columns", "shard_placement_fn=", "gather=True"]
        says(ValueError, lambda s=size: FlowSGD([("p", p)], lr=0.1, block_size=s), *words)
    far = nn.Parameter(distribute_tensor(2 * W, mesh, [Shard(0), Shard(1)]))
    says(ValueError, lambda: FlowSGD([("p", far)], lr=0.1, gather=True), "p of shape (24, 10) must")


def checks():
    named = {
        f"{name}, {kind}": partial(equal, name, kind)
        for name in PLACED
        for kind in ("momentum", "adam", "angle")
    }
    return named | {"refused": refused}


if __name__ == "__main__":
    run_checks(checks(), int(sys.argv[1]), sys.argv[2], size=4)
