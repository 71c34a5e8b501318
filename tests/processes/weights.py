"""Single sharded weights; the oracle is the optimiser on the assembled weight."""

import copy
import pickle
import warnings
from functools import partial
from itertools import product

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from processes.shards import OPTIMIZERS, mesh_of, says, start, stepped
from skewflow.distributed import check_agreement
from skewflow.errors import FactorError, NotOnManifoldError
from skewflow.geometry import orthogonality_error
from skewflow.optim import FlowSGD, split_parameters
from skewflow.samplers import RelabelledRoundRobin
from skewflow_lab.measure.traffic import Traffic

PLACED = {  # shape, sharded dimension, block size
    "tall s=2": ((24, 10), 1, 2),
    "tall s=8": ((24, 10), 1, 8),
    "tall exact": ((24, 10), 0, "dense"),
    "tall auto": ((24, 10), 0, "auto"),
    "fewer rows than a block": ((9, 4), 0, 16),
    "wide s=8": ((10, 24), 0, 8),
    "wide exact": ((10, 24), 1, "dense"),
    "square s=8": ((17, 17), 1, 8),
    "conv s=2": ((6, 4, 3, 3), 0, 2),
    "conv exact": ((6, 4, 3, 3), 1, "dense"),
    "batch of whole matrices": ((5, 9, 4), 0, 3),
    "batch of whole matrices exact": ((5, 9, 4), 0, "dense"),
    "batch of columns": ((3, 9, 4), 2, 3),
    "batch of rows exact": ((3, 9, 4), 1, "dense"),
    "uneven columns": ((13, 7), 1, 4),
    "uneven rows": ((13, 5), 0, "dense"),
    "an empty part of columns": ((12, 1), 1, 4),
    "an empty part of a batch": ((1, 12, 6), 0, 4),
}


def equal(name, kind, dtype):
    shape, dim, size = PLACED[name]
    W, generator = start(shape, dtype)
    mesh, (cls, options) = mesh_of(2), OPTIMIZERS[kind]
    p = nn.Parameter(distribute_tensor(W.clone(), mesh, [Shard(dim)]))
    q = nn.Parameter(W.clone())
    rows = max(shape[-2:]) if len(shape) < 4 else 36
    lr = 0.05 if not isinstance(size, int) else 0.05 * (min(size, rows) - 1) / (rows - 1)
    both = [cls([w], lr=lr, block_size=size, **options) for w in (p, q)]

    def place(G):
        return distribute_tensor(G, mesh, [Shard(dim)])

    stepped(both, (p, q), shape, 20, generator, dtype, place)
    error = float((p.detach().full_tensor() - q.detach()).abs().max())
    assert error <= (1e-12 if dtype == torch.float64 else 1e-5), error
    assert float((q.detach() - W).abs().max()) > 1e-3
    return error


def rows_of_a_square():
    """Blocks of columns: the step of the transposed weight."""
    W, generator = start((14, 14))
    mesh, errors = mesh_of(2), []
    for cls, options in OPTIMIZERS.values():
        p = nn.Parameter(distribute_tensor(W.clone(), mesh, [Shard(0)]))
        q = nn.Parameter(W.mT.contiguous())
        both = [cls([w], lr=0.01, block_size=4, **options) for w in (p, q)]
        for _ in range(20):
            G = torch.randn(14, 14, generator=generator, dtype=torch.float64)
            p.grad, q.grad = distribute_tensor(G, mesh, [Shard(0)]), G.mT.contiguous()
            for optimizer in both:
                optimizer.step()
        errors.append(float((p.detach().full_tensor() - q.detach().mT).abs().max()))
        assert errors[-1] <= 1e-12, errors
    return max(errors)


def replicated():
    """HSDP with two copies, each on one process: nothing is added up, and copies stay equal."""
    mesh = mesh_of(2, 1, mesh_dim_names=("replicate", "shard"))
    W, generator = start((12, 6))
    p = nn.Parameter(distribute_tensor(W, mesh, [Replicate(), Shard(0)]))
    q = nn.Parameter(W.clone())
    both = [FlowSGD([w], lr=0.02, momentum=0.9, block_size=3) for w in (p, q)]
    stepped(
        both, (p, q), W.shape, 5, generator, W.dtype,
        lambda G: distribute_tensor(G, mesh, [Replicate(), Shard(0)]),
    )  # fmt: skip
    assert float((p.detach().to_local() - q.detach()).abs().max()) <= 1e-12


def beside_others():
    """A weight on no mesh, one without a gradient, a tied one and a sharded one."""
    W, _ = start((12, 6))
    V, _ = start((6, 6), seed=1)
    mesh = mesh_of(2)

    class Tied(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.a, self.b = nn.Linear(6, 12, bias=False), nn.Linear(6, 12, bias=False)
            self.a.weight = weight
            self.b.weight = self.a.weight

    sharded = Tied(nn.Parameter(distribute_tensor(W, mesh, [Shard(1)])))
    whole = Tied(nn.Parameter(W.clone()))
    results = []
    for model in (sharded, whole):
        ours, _ = split_parameters(model, "a.weight")
        assert len(ours) == 1
        plain, idle = nn.Parameter(V.clone()), nn.Parameter(V.clone())
        optimizer = FlowSGD([*ours, ("plain", plain), ("idle", idle)], lr=0.01, block_size=2)
        g = torch.Generator().manual_seed(2)
        for _ in range(4):
            G = torch.randn(12, 6, generator=g, dtype=torch.float64)
            p = ours[0][1]
            p.grad = distribute_tensor(G, mesh, [Shard(1)]) if model is sharded else G
            plain.grad = torch.randn(6, 6, generator=g, dtype=torch.float64)
            optimizer.step()
        full = p.detach().full_tensor() if model is sharded else p.detach()
        results.append((full, plain.detach(), idle.detach()))
    for a, b in zip(*results, strict=True):
        assert float((a - b).abs().max()) <= 1e-12
    assert torch.equal(results[0][2], V)


GATHERED = {  # shape, sharded dimension, and options that need the whole matrix
    "blocks of split rows": ((24, 10), 0, {"block_size": 4}),
    "exact with split columns": ((24, 10), 1, {"block_size": "dense"}),
    "cayley with split rows": ((9, 4), 0, {"block_size": "dense", "retraction": "cayley"}),
    "exact of a square matrix": ((8, 8), 1, {"block_size": "dense"}),
    "a sampler": ((13, 7), 1, {"block_size": 2, "sampler": RelabelledRoundRobin()}),
    "an empty part": ((12, 1), 1, {"block_size": "dense"}),
}


def gathered():
    """Steps that no placement makes cheap, by whole matrices, if the user asks for them."""
    mesh, errors = mesh_of(2), {}
    for name, (shape, dim, options) in GATHERED.items():
        for kind in ("momentum", "adam", "angle"):
            (W, generator), (cls, more) = start(shape), OPTIMIZERS[kind]
            p, q = nn.Parameter(distribute_tensor(W, mesh, [Shard(dim)])), nn.Parameter(W.clone())
            both = [cls([("w", w)], lr=0.01, gather=w is p, **more, **options) for w in (p, q)]
            place = partial(distribute_tensor, device_mesh=mesh, placements=[Shard(dim)])
            stepped(both, (p, q), shape, 6, generator, W.dtype, place)
            error = float((p.detach().full_tensor() - q.detach()).abs().max())
            assert error <= 1e-12, (name, kind, error)
            assert float((q.detach() - W).abs().max()) > 1e-3
            errors[f"{name} {kind}"] = error
            reports = [optimizer.report() for optimizer in both]
            assert "the whole matrix is gathered" in reports[0].reasons["w"]
            assert reports[0].keys() == reports[1].keys()
            assert all(abs(value - reports[1][key]) < 1e-10 for key, value in reports[0].items())
    return errors


def by_factors():
    """Exact steps by the factors of a gradient, whatever is split, and wherever the factors are."""
    mesh, errors = mesh_of(2), {}
    cases = [((24, 10), 0), ((24, 10), 1), ((10, 24), 0), ((10, 24), 1), ((14, 14), 0)]
    cases += [((13, 7), 1), ((12, 1), 1), ((3, 9, 6), 0), ((3, 9, 6), 1), ((3, 9, 6), 2)]
    for (shape, dim), rank, size in product(cases, (2, 6), ("auto", "dense")):
        (W, g), batch = start(shape), shape[:-2]
        options = {"lr": 0.05, "gather": True, "retraction": "exp", "check_every": 2}
        p, q = nn.Parameter(distribute_tensor(W, mesh, [Shard(dim)])), nn.Parameter(W.clone())
        a = FlowSGD([("p", p)], block_size=size, **options)
        b = FlowSGD([q], block_size="dense", **options)
        for step in range(20):
            A, B = (torch.randn(*batch, n, rank, generator=g, dtype=W.dtype) for n in shape[-2:])
            A = 100 * A if step == 10 else A  # a long step
            placed = (A, B)
            if step % 2:  # each process has some of the columns, as of its own samples
                placed = (distribute_tensor(F, mesh, [Shard(len(shape) - 1)]) for F in (A, B))
            a.step(factors={p: tuple(placed)})
            b.step(factors={q: (A, B)})
        error = float((p.detach().full_tensor() - q.detach()).abs().max())
        assert error <= 1e-12, (shape, dim, rank, error)
        assert "came in factors" in a.report().reasons["p"]
        errors[f"{shape} {dim} {rank}"] = error
    for options, words in (({"momentum": 0.9}, "without momentum"), ({"block_size": 2}, "exact")):
        p = nn.Parameter(distribute_tensor(W, mesh, [Shard(2)]))
        optimizer = FlowSGD([p], lr=0.1, **options)
        says(FactorError, lambda o=optimizer, p=p: o.step(factors={p: (A, B)}), words)
    return errors


def orthogonality():
    """2,000 steps in float32, without the drift guard and with it."""
    mesh, found = mesh_of(2), {}
    for shape, dim, size, every in (((32, 16), 1, 8, 0), ((16, 32), 1, "auto", 256)):
        W, generator = start(shape, torch.float32)
        p = nn.Parameter(distribute_tensor(W, mesh, [Shard(dim)]))
        optimizer = FlowSGD([p], lr=0.003, momentum=0.9, block_size=size, check_every=every)
        for _ in range(2000):
            G = torch.randn(shape, generator=generator)
            p.grad = distribute_tensor(G, mesh, [Shard(dim)], src_data_rank=None)
            optimizer.step()
        X = p.detach().full_tensor()
        error = float(orthogonality_error(X if dim == 1 and shape[0] > shape[1] else X.mT)) / 4
        found[f"{shape} {size} {every}"] = error
        assert error <= 1e-5, error
    for dim in (0, 1):
        (W, g), rank = start((32, 16), torch.float32), 2
        p = nn.Parameter(distribute_tensor(W, mesh, [Shard(dim)]))
        optimizer = FlowSGD([p], lr=0.03)
        for _ in range(500):
            factors = (torch.randn(32, rank, generator=g), torch.randn(16, rank, generator=g))
            optimizer.step(factors={p: factors})
        error = float(orthogonality_error(p.detach().full_tensor())) / 4
        found[f"factors, dimension {dim}"] = error
        assert error <= 1e-5, error
    return found


def guard():
    """A weight that has drifted is polished, by some columns a step where columns are split."""
    mesh, most = mesh_of(2), {}
    for shape, dim in (((300, 280), 1), ((2, 12, 7), 2), ((12, 7), 0)):
        W, generator = start(shape, torch.float32)
        noisy = W + 3e-5 * torch.randn(shape, generator=generator)
        for written in (W, noisy):
            p = nn.Parameter(distribute_tensor(W.clone(), mesh, [Shard(dim)]))
            optimizer = FlowSGD([p], lr=0.0, check_every=4)
            p.detach().copy_(distribute_tensor(written, mesh, [Shard(dim)]))
            p.grad = torch.zeros_like(p)
            sends = []
            for _ in range(9):  # chunks of at most 64 columns, or a quarter, from step 4 on
                with Traffic() as traffic:
                    optimizer.step()
                sends.append(sum(traffic.numbers))
            if dim:
                assert max(sends) < 0.75 * W.numel() + 100, sends
                assert optimizer.state[p]["polishes"] == (written is noisy)
            most[f"{shape}, {written is noisy}"] = max(sends)
            X = p.detach().full_tensor()
            assert float(orthogonality_error(X).max()) / shape[-1] ** 0.5 < 4e-6
    p.detach().copy_(distribute_tensor(W, mesh, [Shard(dim)]))
    p = nn.Parameter(distribute_tensor(W.clone(), mesh, [Shard(1)]))
    optimizer = FlowSGD([("p", p)], lr=0.0, check_every=1)
    p.detach().mul_(2)
    p.grad = torch.zeros_like(p)
    says(NotOnManifoldError, optimizer.step, "p of shape (12, 7) must stay orthogonal")
    return most


def copies():
    """A copied or pickled optimiser goes on as the first one does."""
    W, generator = start((24, 10))
    mesh = mesh_of(2)
    p = nn.Parameter(distribute_tensor(W, mesh, [Shard(1)]))
    optimizer = FlowSGD([p], lr=0.01, momentum=0.9, block_size=4)
    G = torch.randn(24, 10, generator=generator, dtype=torch.float64)
    p.grad = distribute_tensor(G, mesh, [Shard(1)])
    optimizer.step()
    others = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    optimizer.step()
    for other in others:
        (q,) = other.param_groups[0]["params"]
        q.grad = p.grad
        other.step()
        assert torch.equal(q.to_local(), p.to_local())


def agreement():
    W, _ = start((6, 6))
    rank = dist.get_rank()
    check_agreement(FlowSGD([nn.Parameter(W.clone())], lr=0.1, block_size=2))
    for name, options in (
        ("seed", {"seed": rank}), ("block_size", {"block_size": 2 + rank}),
        ("lr", {"lr": rank + 1}),
    ):  # fmt: skip
        optimizer = FlowSGD([nn.Parameter(W.clone())], **{"lr": 0.1, **options})
        says(ValueError, lambda o=optimizer: check_agreement(o), f"`{name}` of group 0")


def reports():
    """Those of the whole weight."""
    W, generator = start((12, 6))
    G = torch.randn(12, 6, generator=generator, dtype=torch.float64)
    mesh = mesh_of(2)
    p, q = nn.Parameter(distribute_tensor(W, mesh, [Shard(1)])), nn.Parameter(W.clone())
    p.grad, q.grad = distribute_tensor(G, mesh, [Shard(1)]), G
    both = [FlowSGD([w], lr=0.1, block_size=3) for w in (p, q)]
    a, b = (dict(optimizer.report()) for optimizer in both)
    assert set(a) == set(b) and a["parameter_0_of_group_0/block_size"] == 3
    assert all(abs(a[key] - b[key]) < 1e-12 for key in a), (a, b)
    assert "as its columns are split" in str(both[0].report())
    both[0].step()


def large_angles():
    """A step of blocks that turns too far warns once, in every process."""
    W, generator = start((24, 10))
    G, mesh = torch.randn(24, 10, generator=generator, dtype=torch.float64), mesh_of(2)
    found = []
    for dim, lr in ((1, 1.0), (0, 1.0), (1, 1e-3)):
        p = nn.Parameter(distribute_tensor(W, mesh, [Shard(dim)]))
        p.grad = distribute_tensor(G, mesh, [Shard(dim)])
        optimizer = FlowSGD([("p", p)], lr=lr, block_size=2, gather=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(4):
                optimizer.step()
        found.append([str(each.message) for each in caught])
    assert [len(messages) for messages in found] == [1, 1, 0], found
    assert found[0] == found[1] and "a plane of p by" in found[0][0], found
