"""States as older commits saved them, with the weights that their runs ended at.

`PYTHONPATH=<checkout of the commit>/src python tests/saved/make.py <name>` writes <name>.pt here.
The files are those of be26308 (states without a version) and 5ad7d67 (version 2); newer sources
must go on from them, so they are never written anew.
"""

import sys
from pathlib import Path

import torch
from torch import nn

from skewflow.nn import orthogonal_
from skewflow.optim import FlowAdam, FlowSGD

CASES = {
    "pairs": (FlowSGD, {"momentum": 0.9, "block_size": 2}),
    "auto": (FlowSGD, {"momentum": 0.9}),
    "exponential": (FlowSGD, {"block_size": "dense", "guard_every": 2}),
    "independent pairs": (FlowSGD, {"block_size": 2, "sampler": "uniform", "seed": 5}),
    "round robin": (FlowSGD, {"block_size": 2, "sampler": "round_robin"}),
    "adam": (FlowAdam, {"block_size": 3}),
    "factors": (FlowSGD, {"momentum": 0.9, "block_size": "dense"}),
    "natural": (FlowSGD, {"block_size": "dense", "natural": True}),
}


def factors_of(grad):
    """Two factors of rank 1 of a matrix, not of its entries: its first row and column."""
    return grad[:, :1].contiguous(), grad[0, :, None].contiguous()


def main(name):
    """Save a state after three steps, and the weight after three more."""
    torch.set_num_threads(1)
    cases = {}
    for case, (make, options) in CASES.items():
        g = torch.Generator().manual_seed(0)
        p = nn.Parameter(orthogonal_(torch.empty(8, 8), generator=g))
        optimizer = make([p], lr=0.05, **options)
        gradients = torch.randn(6, 8, 8, generator=g)
        for i, grad in enumerate(gradients):
            if i == 3:
                # A list in a copy: the state holds the tensors of the run.
                saved = optimizer.state_dict()
                begin = {
                    "point": p.detach().clone(),
                    "state": torch.load(_bytes(saved), weights_only=True),
                }
            if case in ("factors", "natural"):
                optimizer.step(factors={p: factors_of(grad)})
            else:
                p.grad = grad.clone()
                optimizer.step()
        cases[case] = {
            **begin,
            "gradients": gradients[3:].clone(),
            "end": p.detach().clone(),
        }
    torch.save(cases, Path(__file__).with_name(f"{name}.pt"))


def _bytes(state):
    import io

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


if __name__ == "__main__":
    main(sys.argv[1])
