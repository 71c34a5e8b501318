"""Steps whose bits are recorded: every kind of step, weight, dtype and sampler at least once.

`python tests/golden/cases.py` writes golden.npz anew. Do that only with a reason that the commit
names: a change of these bits is a change of every run that somebody resumes.
"""

import hashlib
import sys
from pathlib import Path

import llvmlite.binding
import numpy as np
import torch
from torch import nn

from skewflow.nn import orthogonal_
from skewflow.optim import FlowAdam, FlowSGD, NaturalSGD
from skewflow.samplers import (
    Balanced,
    HeavyMatchings,
    HRegular,
    Optimal,
    RelabelledRoundRobin,
    RoundRobin,
)

FILE = Path(__file__).with_name("golden.npz")
STEPS = 6
FEW_STEPS = 2  # before rounding, which differs between processors, has grown

SHAPES = {
    "square": (12, 12),
    "tall": (20, 7),
    "thin": (33, 4),
    "wide": (6, 15),
    "batch": (3, 9, 6),
    "conv": (8, 3, 3, 3),
    "large": (70, 70),
}
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}
SGD = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "maximize": {"momentum": 0.5, "maximize": True},
}
STEPS_OF = {
    "s2": {"block_size": 2},
    "s3": {"block_size": 3},
    "s8": {"block_size": 8},
    "s40": {"block_size": 40},
    "s2-cayley": {"block_size": 2, "retraction": "cayley"},
    "s8-cayley": {"block_size": 8, "retraction": "cayley"},
    "exp": {"block_size": "dense"},
    "polar": {"block_size": "dense", "retraction": "polar"},
    "cayley": {"block_size": "dense", "retraction": "cayley"},
    "auto": {"block_size": "auto"},
}
SAMPLERS = {
    "uniform": "uniform",
    "round_robin": RoundRobin(),
    "relabelled_round_robin": RelabelledRoundRobin(),
    "h_regular": HRegular(2),
    "optimal": Optimal(2),
    "heavy_matchings": HeavyMatchings(),
    "balanced": Balanced(2),
}


def run(make, shape, dtype, options, *, steps, factors=None, num=1, lr=0.05):
    """The weights and the state after some steps with gradients of a fixed seed."""
    g = torch.Generator().manual_seed(0)
    params = [
        nn.Parameter(orthogonal_(torch.empty(shape, dtype=torch.float64), generator=g).to(dtype))
        for _ in range(num)
    ]
    if dtype != torch.float64:
        with torch.no_grad():  # orthogonal to their own digits
            for p in params:
                p.copy_(orthogonal_(torch.empty_like(p), generator=g))
    optimizer = make(params, lr=lr, **options)
    for _ in range(steps):
        given = {}
        for p in params:
            if factors is None:
                p.grad = torch.randn(p.shape, generator=g, dtype=torch.float64).to(dtype)
            else:
                *batch, rows, columns = p.shape
                given[p] = tuple(
                    torch.randn(*batch, n, factors, generator=g, dtype=torch.float64).to(dtype)
                    for n in (rows, columns)
                )
        optimizer.step(factors=given) if given else optimizer.step()
    found = [p.detach() for p in params]
    for p in params:
        state = optimizer.state[p]
        found += [state[key] for key in sorted(state) if isinstance(state[key], torch.Tensor)]
    return found


def cases():
    """Each case by name: a function of the number of steps that returns tensors."""
    table = {}

    def add(name, *args, **kwargs):
        assert name not in table, name
        table[name] = lambda steps=STEPS: run(*args, steps=steps, **kwargs)

    for step, options in STEPS_OF.items():
        for shape in SHAPES:
            if options["block_size"] == 40 and shape != "large":
                continue
            if shape == "large" and step not in ("s2", "s8", "s40", "exp", "polar", "auto"):
                continue
            add(f"sgd-{step}-{shape}-f32", FlowSGD, SHAPES[shape], torch.float32, options)
        for dtype in ("f64", "bf16"):
            for shape in ("square", "tall", "wide"):
                more = {**options, **SGD["momentum"]}
                add(f"sgd-{step}-{shape}-{dtype}-momentum", FlowSGD, SHAPES[shape],
                    DTYPES[dtype], more)  # fmt: skip
        for kind in ("momentum", "nesterov", "maximize"):
            for shape in ("square", "batch", "conv"):
                more = {**options, **SGD[kind]}
                add(f"sgd-{step}-{shape}-f32-{kind}", FlowSGD, SHAPES[shape], torch.float32, more)
        for shape in ("square", "thin", "wide", "batch", "conv"):
            for dtype in ("f32", "f64") if shape in ("square", "thin") else ("f32",):
                add(f"adam-{step}-{shape}-{dtype}", FlowAdam, SHAPES[shape], DTYPES[dtype], options)
        add(f"sgd-{step}-three-f32", FlowSGD, (8, 8), torch.float32, {**options, **SGD["momentum"]},
            num=3)  # fmt: skip
    for sampler in SAMPLERS:
        for shape in ("square", "batch"):
            options = {"block_size": 2, "sampler": SAMPLERS[sampler], **SGD["momentum"]}
            add(f"sgd-{sampler}-{shape}-f64", FlowSGD, SHAPES[shape], torch.float64, options)
        add(f"adam-{sampler}-square-f64", FlowAdam, SHAPES["square"], torch.float64,
            {"block_size": 2, "sampler": SAMPLERS[sampler]})  # fmt: skip
    for shape in ("square", "tall", "thin", "wide", "batch", "large"):
        for dtype in DTYPES:
            add(f"factored-{shape}-{dtype}", FlowSGD, SHAPES[shape], DTYPES[dtype],
                {"block_size": "dense"}, factors=1)  # fmt: skip
    for kind in ("momentum", "nesterov", "maximize"):
        add(f"factored-large-f32-{kind}", FlowSGD, SHAPES["large"], torch.float32,
            {"block_size": "dense", **SGD[kind]}, factors=2)  # fmt: skip
        add(f"formed-square-f32-{kind}", FlowSGD, SHAPES["square"], torch.float32, SGD[kind],
            factors=4)  # fmt: skip
    for shape in ("tall", "wide", "large"):
        for dtype in ("f32", "f64"):
            add(f"natural-{shape}-{dtype}", NaturalSGD, SHAPES[shape], DTYPES[dtype], {},
                factors=2)  # fmt: skip
    for lr in (1e-4, 3.0, 1e4):
        for step in ("s2", "s8", "exp", "polar", "cayley"):
            add(f"sgd-{step}-square-f32-lr{lr:g}", FlowSGD, SHAPES["square"], torch.float32,
                STEPS_OF[step], lr=lr)  # fmt: skip
    return table


def digest(tensors):
    """The hash of all bits."""
    h = hashlib.sha256()
    for t in tensors:
        h.update(str((tuple(t.shape), t.dtype)).encode())
        h.update(t.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def numbers(tensors):
    """The first tensor as float32, for machines whose processor gives other bits."""
    return tensors[0].float().numpy().ravel()


def processor():
    """The hash of products of torch, and the processor that numba compiles for: bits need both."""
    g = torch.Generator().manual_seed(0)
    made = []
    for dtype in (torch.float32, torch.float64):
        for n in (12, 33, 70):
            A = torch.randn(n, n, generator=g, dtype=torch.float64).to(dtype)
            made += [A @ A.mT, torch.linalg.svd(A)[0], A.exp(), torch.linalg.solve(A, A.mT)]
    features = llvmlite.binding.get_host_cpu_features().flatten()
    return f"{digest(made)} {llvmlite.binding.get_host_cpu_name()} {features}"


def write():
    """Record all cases."""
    torch.set_num_threads(1)
    table = {name: make() for name, make in cases().items()}
    arrays = {f"numbers/{name}": numbers(make(FEW_STEPS)) for name, make in cases().items()}
    arrays["names"] = np.array(list(table))
    arrays["digests"] = np.array([digest(tensors) for tensors in table.values()])
    arrays["processor"] = np.array(processor())
    np.savez_compressed(FILE, **arrays)
    print(f"{len(table)} cases, {FILE.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    sys.exit(write())
