"""Parameters for the CUDA kernels, interpreted on a CPU or compiled where there is a GPU."""

import os
from dataclasses import replace

import torch
import triton
import triton.language as tl

from helpers import assert_close, randn, random_stiefel

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED and isinstance(tl.sum, triton.runtime.jit.JITFunction):
    raise RuntimeError(
        "triton was imported before tests/kernels/conftest.py set TRITON_INTERPRET=1: "
        "set it in the environment, or find out what imports triton."
    )

from skewflow.kernels._runtime._operands_triton import Operands  # noqa: E402
from skewflow.kernels.update import Update  # noqa: E402

SEED = 2**40 + 3
LATE = 12345678901  # a step whose high word counts


class Case:
    """Parameters of one shape with their gradients and momenta, and the reference's way on."""

    def __init__(
        self, d, k, generator, device, *, n=1, num=1, columns=False, dtype=torch.float32,
        grad=None, low=None, **options,
    ):  # fmt: skip
        def lay_out(tensor, dtype=dtype):
            tensor = tensor.to(device, dtype)
            return tensor.mT.contiguous().mT if columns else tensor

        def draw(dtype=dtype):
            return [lay_out(randn(n, d, k, generator=generator), dtype) for _ in range(num)]

        def points():
            if k > d:
                return randn(n, d, k, generator=generator) / k**0.5
            return random_stiefel(d, k, generator=generator, batch=(n,))

        self.dtype, self.low, self.d = dtype, low, d
        self.update = Update(lr=0.05 / d, seed=SEED, **options)
        self.streams = [5, 70, 2**33][:num]
        self.Xs = [lay_out(points()) for _ in range(num)]
        self.Gs = draw(grad or dtype)
        self.Ms = draw() if self.update.momentum else None
        self.Ps = [torch.empty_like(X, dtype=low) for X in self.Xs] if low else None
        self.device = device
        self.flags = torch.zeros(1 + num, dtype=torch.int32, pin_memory=not INTERPRETED)

    def operands(self, replayed=0, **more):
        return Operands(
            self.Xs, self.Gs, self.Ms, self.Ps, self.streams,
            torch.tensor(replayed, device=self.device), self.flags, **more,
        )  # fmt: skip

    def check(self, plan, reference, *args, steps=(LATE,), **tuning):
        """Each step of the fused form from where it is, against the reference's."""
        for step in (torch.tensor(s, device=self.device) for s in steps):
            grads = [G.clone() for G in self.Gs]
            Ms = self.Ms or [None] * len(self.Xs)
            expected = [
                reference(X, G, M, step, replace(self.update, stream=stream), *args)
                for X, G, M, stream in zip(self.Xs, self.Gs, Ms, self.streams, strict=True)
            ]
            plan(self.operands(int(step) - 2), self.update, *args, **tuning)(self.update, done=2)
            for p, (X, M) in enumerate(expected):
                assert torch.equal(self.Gs[p], grads[p])
                assert_close("X", X.cpu(), self.Xs[p].cpu(), self.dtype)
                if M is not None:
                    assert_close("M", M.cpu(), self.Ms[p].cpu(), self.dtype)
                if self.low:
                    # The interpreter cuts off where a GPU rounds.
                    factor = 1.0 if INTERPRETED else 0.0
                    rounded = self.Xs[p].to(self.low)
                    assert_close("P", rounded.cpu(), self.Ps[p].cpu(), self.low, factor=factor)
