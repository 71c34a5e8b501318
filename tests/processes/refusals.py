"""What sharded weights refuse: all processes raise, and nothing has changed."""

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

from processes.shards import mesh_of, says, start
from skewflow.errors import NonFiniteGradientError, NotOnManifoldError
from skewflow.optim import FlowAdam, FlowSGD
from skewflow.samplers import RoundRobin


def factors_that_are_not_finite():
    """On one process only: every process refuses, and nothing moves."""
    (W, g), mesh = start((12, 6)), mesh_of(2)
    p = nn.Parameter(distribute_tensor(W, mesh, [Shard(0)]))
    A, B = (torch.randn(n, 2, generator=g, dtype=W.dtype) for n in W.shape)
    if dist.get_rank() == 1:
        A[-1, 0] = torch.inf
    optimizer = FlowSGD([("p", p)], lr=0.1)
    says(NonFiniteGradientError, lambda: optimizer.step(factors={p: (A, B)}), "p must be finite")
    assert torch.equal(p.detach().full_tensor(), W)


def wrong_layouts():
    mesh, (W, _) = mesh_of(2), start((12, 6))
    S, _ = start((6, 6))
    line = r"shard_placement_fn=skewflow.distributed.shard_placement(model"
    for weight, dim, options, words in [
        (W, 0, {"block_size": 4}, ["splits rows", line, "gather=True"]),
        (W, 1, {"block_size": "dense"}, ["splits columns", line + ', steps="exact"))']),
        (S, 0, {"block_size": "dense"}, ["splits columns"]),
        (W, 0, {"block_size": "dense", "retraction": "cayley"}, ["Cayley"]),
        (W, 1, {"block_size": 2, "sampler": RoundRobin()}, ["RoundRobin(", '"sweep"']),
        (W, 0, {"scale": 2.0}, ["`scale` must be 1 for a sharded weight: got 2 for w"]),
    ]:
        p = nn.Parameter(distribute_tensor(weight, mesh, [Shard(dim)]))
        says(ValueError, lambda p=p, o=options: FlowSGD([("w", p)], lr=0.1, **o), *words)
    far = nn.Parameter(distribute_tensor(2 * W, mesh, [Shard(1)]))
    says(NotOnManifoldError, lambda: FlowSGD([("w", far)], lr=0.1), "w of shape (12, 6) must be")
    V, _ = start((12, 6), seed=dist.get_rank())  # other weights in each process
    mixed = nn.Parameter(distribute_tensor(V, mesh, [Shard(0)], src_data_rank=None))
    says(NotOnManifoldError, lambda: FlowSGD([("w", mixed)], lr=0.1), "the same seed in every")
    half = nn.Parameter(distribute_tensor(W.bfloat16(), mesh, [Shard(1)]))
    says(TypeError, lambda: FlowSGD([("w", half)], lr=0.1), "MixedPrecisionPolicy")


def gradients_that_are_not_finite():
    """On one process only: all refuse, and nothing moves, or all leave the weight out."""
    W, generator = start((12, 6))
    mesh = mesh_of(2)
    for dim, size in ((1, 3), (0, "dense"), (0, 3)):
        p = nn.Parameter(distribute_tensor(W.clone(), mesh, [Shard(dim)]))
        q = nn.Parameter(W.clone())
        for handling in ("raise", "skip"):
            options = {"block_size": size, "nonfinite": handling, "gather": True}
            optimizer = FlowAdam([("p", p), ("q", q)], lr=0.1, **options)
            G = torch.randn(12, 6, generator=generator, dtype=torch.float64)
            q.grad = G.clone()
            p.grad = distribute_tensor(G, mesh, [Shard(dim)])
            if dist.get_rank() == 1:
                p.grad.to_local()[0, 0] = torch.nan
            before = [w.detach().clone() for w in (p, q)]
            if handling == "raise":
                says(NonFiniteGradientError, optimizer.step, "the gradient of p must be finite")
                assert torch.equal(q.detach(), before[1])
                assert optimizer.param_groups[0]["step"] == 0
                assert not optimizer.state[p]["exp_avg_sq"].any()
            else:
                optimizer.step()
                assert int(optimizer.state[p]["skipped"]) == 1
                assert not torch.equal(q.detach(), before[1])
            assert torch.equal(p.detach().to_local(), before[0].to_local())


def whole_weights_that_are_refused():
    """On one process only, beside a weight in parts or a gathered one: the others refuse, too."""
    W, generator = start((12, 6))
    V, _ = start((6, 6), seed=1)
    mesh = mesh_of(2)
    for size in (3, "dense"):
        p = nn.Parameter(distribute_tensor(W.clone(), mesh, [Shard(1)]))
        u = nn.Parameter(V.clone())
        groups = [{"params": [("u", u)]}, {"params": [("p", p)], "block_size": size}]
        optimizer = FlowSGD(groups, lr=0.01, momentum=0.9, gather=True)
        for bad in (True, False):
            G = torch.randn(12, 6, generator=generator, dtype=torch.float64)
            p.grad = distribute_tensor(G, mesh, [Shard(1)])
            u.grad = torch.randn(6, 6, generator=generator, dtype=torch.float64)
            if not bad:
                optimizer.step()
            elif dist.get_rank() == 1:
                u.grad[0, 0] = torch.nan
                says(NonFiniteGradientError, optimizer.step, "the gradient of u must be finite")
            else:
                says(RuntimeError, optimizer.step, "another one refuses this step")
            same = torch.equal(p.to_local(), distribute_tensor(W, mesh, [Shard(1)]).to_local())
            assert same == torch.equal(u, V) == bad
            assert optimizer.param_groups[0]["step"] == 1 - bad
        X = p.detach().full_tensor()
        assert float((X.mT @ X - torch.eye(6)).abs().max()) < 1e-12
