"""Models that torch shards, against whole ones; and their checkpoints."""

import copy
from functools import partial

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import parallelize_module

from processes.shards import OPTIMIZERS, mesh_of, says
from skewflow.distributed import shard_placement, tensor_parallel_plan
from skewflow.nn import OrthogonalConv2d, OrthogonalLinear, orthogonal_
from skewflow.optim import FlowSGD, split_parameters


def doubled(model):
    """The model in float64, its weights orthogonal to that."""
    generator = torch.Generator().manual_seed(0)
    for _, p in split_parameters(model.double())[0]:
        orthogonal_(p, generator=generator)
    return model


class Heads(nn.Module):
    """A batch of matrices, each of which maps all inputs."""

    orthogonal_names = ("weight",)

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3, 8, 4))

    def forward(self, x):
        return torch.einsum("bi,hij->bhj", x, self.weight).flatten(1)


class Turned(nn.Module):
    """A square linear layer whose parameter is the transposed weight."""

    orthogonal_names = ("weight",)

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight.detach().mT.contiguous())

    def forward(self, x):
        return x @ self.weight


class Net(nn.Module):
    """Weights of each shape; `conv` has a bias, `head` is no orthogonal weight.

    Args:
        dtype: Of the parameters.
        turned: Hold the transpose of the square weight, which is what a sharded model steps.
    """

    def __init__(self, dtype=torch.float64, turned=False):
        super().__init__()
        torch.manual_seed(0)
        self.conv = OrthogonalConv2d(2, 4, 3)
        self.tall = OrthogonalLinear(16, 40, bias=False)
        self.square = OrthogonalLinear(40, 40, bias=False)
        self.wide = OrthogonalLinear(40, 8, bias=False)
        self.heads = Heads()
        self.head = nn.Linear(12, 2)
        doubled(self)
        if turned:
            self.square = Turned(self.square.weight)
        self.to(dtype)

    def forward(self, x):
        x = self.conv(x).flatten(1).tanh()
        x = self.wide(self.square(self.tall(x).tanh()).tanh())
        return self.head(self.heads(x).tanh())


def batch(generator, dtype):
    x = torch.randn(6, 2, 4, 4, generator=generator, dtype=torch.float64).to(dtype)
    return x, x[:, :, 0, 0]


def optimizers_of(model, kind="momentum", size=2):
    """The optimisers; exact steps leave the square weight, whose rows are split, to blocks."""
    ours, rest = split_parameters(model)
    square = [(name, p) for name, p in ours if name == "square.weight"]
    others = [(name, p) for name, p in ours if name != "square.weight"]
    groups = [{"params": others}, {"params": square, "block_size": 8 if size == "dense" else size}]
    cls, options = OPTIMIZERS[kind]
    return [cls(groups, lr=0.003, block_size=size, **options), torch.optim.AdamW(rest, lr=0.003)]


def train(model, optimizers, steps=3, clip=None, accumulate=1):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for _ in range(accumulate):
            x, y = batch(generator, next(model.parameters()).dtype)
            ((model(x) - y).square().mean() / accumulate).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def parts(model):
    found = {
        name: (p.full_tensor() if hasattr(p, "full_tensor") else p).detach()
        for name, p in model.named_parameters()
    }
    if isinstance(getattr(model, "square", None), Turned):
        found["square.weight"] = found["square.weight"].mT
    return found


def compare(a, b, tolerance):
    a, b = parts(a), parts(b)
    errors = {name: float((a[name] - b[name]).abs().max()) for name in a}
    assert max(errors.values()) <= tolerance, errors
    return max(errors.values())


def fully_sharded(kind="momentum", size=2, dtype=torch.float64, mesh=None, **training):
    """`fully_shard` with the placement of the helper, and a whole model on the same examples."""
    whole, model = Net(dtype, turned=True), Net(dtype)
    before = {name: p.clone() for name, p in parts(whole).items()}
    mesh = mesh or mesh_of(2)
    steps = "exact" if size == "dense" else "blocks"
    fully_shard(model, mesh=mesh, shard_placement_fn=shard_placement(model, mesh, steps=steps))
    for each in (whole, model):
        train(each, optimizers_of(each, kind, size), steps=20, **training)
    moved = min(float((p - before[name]).abs().max()) for name, p in parts(whole).items())
    assert moved > 1e-4, moved
    return compare(whole, model, 1e-12 if dtype == torch.float64 else 1e-5)


def sharded_later():
    """A trainer shards the model after the optimiser was made, and replaces its parameters."""
    mesh, models = mesh_of(2), [Net(), Net()]
    place = shard_placement(models[0], mesh)
    fully_shard(models[0], mesh=mesh, shard_placement_fn=place)
    both = [optimizers_of(model) for model in models]
    place = shard_placement(models[1], mesh)
    number = {p: i for i, p in enumerate(models[1].parameters())}
    fully_shard(models[1], mesh=mesh, shard_placement_fn=place)
    new = [*models[1].parameters()]
    for optimizer in both[1]:
        for group in optimizer.param_groups:
            group["params"] = [new[number[p]] for p in group["params"]]
    for model, optimizers in zip(models, both, strict=True):
        train(model, optimizers)
    assert compare(*models, 0) == 0


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = (OrthogonalLinear(8, 24, bias=False) for _ in range(2))
        self.b.weight = self.a.weight
        self.head = nn.Linear(24, 8)
        doubled(self)

    def forward(self, x):
        return self.head(self.a(self.head(self.b(x).tanh())))


def tied():
    """A weight that two layers share is one weight, also in parts."""
    whole, model = Tied(), Tied()
    fully_shard(model, mesh=mesh_of(2), shard_placement_fn=shard_placement(model, mesh_of(2)))
    assert model.a.weight is model.b.weight and model.a.weight.placements == (Shard(1),)
    for each in (whole, model):
        ours, rest = split_parameters(each)
        flow = FlowSGD(ours, lr=0.01, momentum=0.9, block_size=4)
        run(each, [flow, torch.optim.AdamW(rest, lr=0.01)], 20, seed=1)
    return compare(whole, model, 1e-12)


def hybrid():
    """HSDP: replicated over one dimension of the mesh, sharded over the other."""
    mesh = mesh_of(1, 2, mesh_dim_names=("replicate", "shard"))
    return fully_sharded(mesh=mesh)


def tensor_parallel():
    """RowwiseParallel and ColwiseParallel, by the plan of the helper."""
    torch.manual_seed(0)
    whole = doubled(nn.Sequential(OrthogonalLinear(8, 24), nn.Tanh(), OrthogonalLinear(24, 8)))
    model = copy.deepcopy(whole)
    parallelize_module(model, mesh_of(2), dict(tensor_parallel_plan(model)))
    assert [model[i].weight.placements for i in (0, 2)] == [(Shard(1),), (Shard(0),)]
    data, losses = torch.Generator().manual_seed(1), {}
    pairs = {id(m): [FlowSGD(split_parameters(m)[0], lr=0.01, momentum=0.9, block_size=4)]
             for m in (whole, model)}  # fmt: skip
    for _ in range(5):
        x = torch.randn(6, 8, generator=data, dtype=torch.float64)
        for m in (whole, model):
            m.zero_grad()
            loss = (m(x) - x.roll(1, -1)).square().mean()
            loss.backward()
            losses[id(m)] = loss.item()
            for optimizer in pairs[id(m)]:
                optimizer.step()
    return compare(whole, model, 1e-12)


def saved_model(mesh, size=2, turned=False, kind="momentum"):
    """The model and its optimisers; `turned` shards each weight along the other dimension."""
    torch.manual_seed(0)
    layers = [OrthogonalLinear(8, 24, bias=False), nn.Tanh()]
    layers += [OrthogonalLinear(24, 8, bias=False), nn.Linear(8, 8)]
    model = doubled(nn.Sequential(*layers))
    if mesh is not None:
        place = shard_placement(model, mesh, steps="exact" if turned else "blocks")
        fully_shard(model, mesh=mesh, shard_placement_fn=place)
    ours, rest = split_parameters(model)
    cls, options = OPTIMIZERS[kind]
    flow = cls(ours, lr=0.01, block_size=size, **options)
    return model, flow, torch.optim.AdamW(rest, lr=0.01)


def refused(mesh):
    """A model whose placement does not allow the blocks that were saved, and its optimisers."""
    model, *optimizers = saved_model(mesh, "auto", turned=True)
    return model, optimizers


SAVED = [("momentum", True), ("momentum", False), ("adam", True), ("adam", False)]
"""The kinds of checkpoints: the optimiser, and whether its state is flat."""


def run(model, optimizers, steps, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(6, 8, generator=g, dtype=torch.float64)
        (model(x) - x.roll(1, -1)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def checkpoints(folder):
    """Saved and loaded on two processes, flat and nested; loaded by one process in the tests."""
    mesh, errors = mesh_of(2), {}
    for kind, flat in SAVED:
        options, saved = (
            StateDictOptions(flatten_optimizer_state_dict=flat),
            f"{folder}/{kind}-{flat}",
        )
        model, *optimizers = saved_model(mesh, kind=kind)
        run(model, optimizers, 4, seed=1)
        save(model, optimizers, saved, options)
        run(model, optimizers, 3, seed=2)
        torch.save(parts(model), f"{saved}.{dist.get_rank()}.pt")

        again, *others = saved_model(mesh, kind=kind)
        load(again, others, saved, options)
        run(again, others, 3, seed=2)
        for name, p in again.named_parameters():
            assert torch.equal(p.to_local(), dict(model.named_parameters())[name].to_local()), name

        # Momentum and weights move to the other dimension, where "auto" takes exact steps.
        other = f"{saved}-auto"
        model, *optimizers = saved_model(mesh, "auto", kind=kind)
        run(model, optimizers, 4, seed=1)
        save(model, optimizers, other, options)
        moved, *others = saved_model(mesh, "auto", turned=True, kind=kind)
        load(moved, others, other, options)
        assert moved[0].weight.placements == (Shard(0),) != model[0].weight.placements
        whole, *alone = saved_model(None, "auto", kind=kind)
        whole.load_state_dict(parts(model))
        for single, several in zip(alone, optimizers, strict=True):
            single.load_state_dict(gathered(several))
        run(moved, others, 3, seed=2)
        run(whole, alone, 3, seed=2)
        errors[f"{kind}, {flat}"] = compare(whole, moved, 1e-12)
        if kind == "momentum":
            says(ValueError, partial(load, *refused(mesh), saved, options), "splits rows")
    return errors


def save(model, optimizers, folder, options):
    weights, states = get_state_dict(model, optimizers, options=options)
    checkpoint.save({"m": weights, "o": states}, checkpoint_id=folder)


def load(model, optimizers, folder, options):
    state = dict(zip(("m", "o"), get_state_dict(model, optimizers, options=options), strict=True))
    checkpoint.load(state, checkpoint_id=folder)
    set_state_dict(
        model, optimizers, model_state_dict=state["m"], optim_state_dict=state["o"], options=options
    )
    assert optimizers[0].param_groups[0]["step"] == 4


def gathered(optimizer):
    """The state of an optimiser with whole tensors."""
    packed = copy.copy(optimizer.state_dict())
    packed["state"] = {
        i: {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in state.items()}
        for i, state in packed["state"].items()
    }
    return packed
