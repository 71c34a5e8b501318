"""What the checks of sharded weights share: meshes, weights, and errors that are expected."""

import torch
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
