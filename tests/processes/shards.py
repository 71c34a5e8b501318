"""What the checks of sharded weights share: how they run, meshes, weights, and expected errors."""

import json
import os
import re
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from skewflow.nn import orthogonal_
from skewflow.optim import AngleSGD, FlowAdam, FlowSGD

OPTIMIZERS = {
    "sgd": (FlowSGD, {}),
    "momentum": (FlowSGD, {"momentum": 0.9}),
    "nesterov": (FlowSGD, {"momentum": 0.9, "nesterov": True}),
    "adam": (FlowAdam, {}),
    "angle": (AngleSGD, {}),
    "rms angle": (AngleSGD, {"angle": "rms", "nesterov": True}),
}


def mesh_of(*shape, **names):
    return init_device_mesh("cpu", shape, **names)


def start(shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return orthogonal_(torch.empty(shape, dtype=dtype), generator=generator), generator


def stepped(optimizers, params, shape, steps, generator, dtype, place):
    """The same gradients for a sharded and a whole parameter."""
    sharded, whole = params
    for _ in range(steps):
        G = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        sharded.grad = place(G)
        whole.grad = G.mT.clone() if whole.shape != sharded.shape else G.clone()
        for optimizer in optimizers:
            optimizer.step()


def says(kind, call, *words):
    try:
        call()
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, (missing, str(error))
    else:
        raise AssertionError(f"no {kind.__name__}")


def run_checks(checks, rank, folder, size):
    """Run every check in this process, and write down what happened."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "a step turns a plane")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size,
        timeout=timedelta(seconds=120),
    )  # fmt: skip
    results, only = {}, os.environ.get("SKEWFLOW_CHECK", "")  # to look at one
    for name, check in checks.items():
        if not re.search(only, name):
            continue
        try:
            results[name] = ["passed", check()]
        except Exception:
            results[name] = ["failed", traceback.format_exc()]
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # threads of torch abort a process now and then that ends by itself
