"""The numbers that a step sends, counted where torch calls the collectives."""

import torch
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

from processes.shards import mesh_of, start
from skewflow.optim import AngleSGD, FlowAdam, FlowSGD
from skewflow_lab.measure.traffic import Traffic


def sent(shape, dim, size, cls=FlowSGD, **options):
    """Numbers and calls of one step."""
    W, generator = start(shape, torch.float32)
    mesh = mesh_of(2)
    p = nn.Parameter(distribute_tensor(W, mesh, [Shard(dim)]))
    optimizer = cls([p], lr=0.01, block_size=size, **options)
    G = torch.randn(shape, generator=generator)
    p.grad = distribute_tensor(G, mesh, [Shard(dim)])
    optimizer.step()
    with Traffic() as traffic:
        optimizer.step()
    return sum(traffic.numbers), len(traffic.calls)


def gathers_of_dtensor():
    """`Traffic` also counts what an operation of DTensor sends by itself."""
    mesh = mesh_of(2)
    A = distribute_tensor(torch.ones(8, 6), mesh, [Shard(0)])
    with Traffic() as traffic:
        A @ A.mT
    assert [(call.kind, call.numbers) for call in traffic.calls] == [("all-gather", 24)]
    assert traffic.sent(2) == 4 * 24


def counts():
    """As the page on sharding says: the counts are those of the algorithm."""
    d, k = 64, 32
    seen = {}
    for s in (2, 8):
        for name, shape, dim in (("tall", (d, k), 1), ("wide", (k, d), 0)):
            for mu in (0.0, 0.9):
                numbers, calls = sent(shape, dim, s, momentum=mu)
                seen[f"{name} s={s}"] = numbers
                assert numbers == d * (s - 1) // 2 + 1 and calls == 1, (numbers, calls)
        numbers, calls = sent((d, d), 0, s)
        assert numbers == d * (s - 1) // 2 + 1 and calls == 1
        numbers, calls = sent((d, k), 1, s, FlowAdam)
        seen[f"adam s={s}"] = numbers
        assert numbers == d * (s - 1) // 2 + d + 1 and calls == 1
    for retraction, most in (("polar", 2 * k * k), ("exp", 2 * k * k + 2 * k)):
        numbers, calls = sent((d, k), 0, "dense", retraction=retraction)
        seen[f"exact {retraction}"] = numbers
        assert numbers <= most and calls <= 3, (numbers, calls)
    numbers, calls = sent((d, k), 0, "dense", momentum=0.9, nesterov=True, retraction="polar")
    assert numbers <= 4 * k * k
    assert sent((64 * k, k), 0, "dense", retraction="polar")[0] < 2 * k * k  # whatever d is
    assert sent((4, d, k), 0, 8) == (1, 1)  # whole matrices: only whether gradients are finite

    # Angles: blocks as before; exact steps need one more product, or its trace.
    assert sent((d, k), 1, 8, AngleSGD) == (d * 7 // 2 + 1, 1)
    for angle, more in (("spectral", k * (k + 1) // 2), ("rms", 1)):
        plain = sent((d, k), 0, "dense", retraction="polar")[0]
        numbers = sent((d, k), 0, "dense", AngleSGD, retraction="polar", angle=angle)[0]
        assert numbers == plain + more <= 4 * k * k
        seen[f"angle {angle}"] = numbers

    # Factors of rank r: products with them, on whichever side is split.
    for dim, r in ((0, 2), (1, 2), (0, 8), (1, 8)):
        W, generator = start((d, k), torch.float32)
        p = nn.Parameter(distribute_tensor(W, mesh_of(2), [Shard(dim)]))
        optimizer = FlowSGD([p], lr=0.01)
        pair = (torch.randn(d, r, generator=generator), torch.randn(k, r, generator=generator))
        optimizer.step(factors={p: pair})
        with Traffic() as traffic:
            optimizer.step(factors={p: pair})
        rows = 2 * r + r * (2 * r + 1) + 2 * r * k
        assert sum(traffic.numbers) == (d * r if dim else rows) + 1, (dim, r, traffic.calls)
        assert max(traffic.numbers) < d * k

    # All weights of a mesh in one call, also of two groups.
    mesh, params = mesh_of(2), []
    for i in range(3):
        W, generator = start((d, k), torch.float32, seed=i)
        p = nn.Parameter(distribute_tensor(W, mesh, [Shard(1)]))
        p.grad = distribute_tensor(torch.randn(d, k, generator=generator), mesh, [Shard(1)])
        params.append(p)
    groups = [{"params": params[:2]}, {"params": params[2:], "block_size": 4}]
    optimizer = FlowSGD(groups, lr=0.01, block_size=2)
    optimizer.step()
    with Traffic() as traffic:
        optimizer.step()
    assert traffic.numbers == [2 * d // 2 + d * 3 // 2 + 3], traffic.calls
    return seen
