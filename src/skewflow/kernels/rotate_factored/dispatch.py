r"""The exact step for a gradient $G = AB^\top$ of low rank, without forming G or $\Omega$.

With $V = XB$ the generator is $\Omega = AV^\top - VA^\top$; see `rotate_factored`.
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.graph import increment_version

from ...geometry.precision import full_precision, is_exact
from .._runtime.graphs import is_capturing
from ..exact_exponential import exponential_step
from .cpu import rotate_factored_
from .reference import LONGEST, factored_generator, rotate_factored

if TYPE_CHECKING:  # Triton is imported on use
    from ._launches_triton import FactoredWorkspace

BREAK_EVEN = {"cpu": (0.25, 0.5), "cuda": (0.25, 0.5)}
"""Largest r / k for a factored step, where 2k >= d and where 2k < d. It costs less than the
exponential up to 0.375 and 0.5 at least (`results/bench/factored_cpu.json`, `factored_cuda.json`),
but the exact step of "auto" is cheaper than the exponential where 2k >= d."""

TOLERANCE, COARSE_TOLERANCE = 1e-5, 1e-3
"""Largest distance of a row of a given V from that of X B, relative to B, in float32 and in TF32.
"""


def is_worth_it(rank: int, d: int, k: int, device: torch.device) -> bool:
    """Whether a factored step of this rank costs less than forming the gradient."""
    square, thin = BREAK_EVEN["cuda" if device.type == "cuda" else "cpu"]
    return rank <= (thin if 2 * k < d else square) * k


class FactoredStep:
    """The step, and its memory on CUDA, which all weights of one shape use in turn."""

    def __init__(self) -> None:
        self._workspaces: dict[tuple[object, ...], FactoredWorkspace] = {}
        self._captured: set[FactoredWorkspace] = set()
        self._calls = self._checks = 0

    def __call__(
        self,
        X: Float[Tensor, "n d k"],
        A: Float[Tensor, "n d r"],
        B: Float[Tensor, "n k r"],
        lr: float,
        V: Float[Tensor, "n d r"] | None = None,
        AX: Float[Tensor, "n r k"] | None = None,
        flag: Tensor | None = None,
    ) -> Bool[Tensor, "n"]:
        r"""$X \leftarrow \exp(-lr\,\Omega)X$ in place, in $O(dkr)$ where r is small.

        In float32 on CUDA nothing waits for the device, and a step whose norm exceeds `LONGEST` is
        cut to it. Otherwise such a step multiplies the factors and uses the gradient.

        Args:
            X: Points.
            A: Left factors of the gradients; they must be finite, except in float32 on CUDA.
            B: Right factors.
            lr: Step size.
            V: The products X B, if they are known.
            AX: The products $A^\top X$, likewise; only with V.
            flag: An int32 in memory that the host can read, which float32 on CUDA sets where
                factors are not usable.

        Returns:
            Which factors were finite and fitted; the other points do not change. The next call
            overwrites the result.
        """
        self._calls += 1
        if is_decided_on_device(X):
            return self._on_device(X, A, B, lr, V, AX, flag)
        n, Y = len(X), X
        if n == 1:
            Y, A, B = X[0], A[0], B[0]
            V, AX = (F if F is None else F[0] for F in (V, AX))
        with full_precision():
            on_host = n == 1 and X.device.type == "cpu"
            if on_host and rotate_factored_(Y, A, B, -lr, V, AX):
                return torch.ones(n, dtype=torch.bool, device=X.device)
            omega = factored_generator(A, Y @ B if V is None else V)
            most = torch.finfo(X.dtype).max  # X's dtype cannot hold a larger rate
            if lr > most or lr * float(omega.norm.max()) > LONGEST:
                X.copy_(exponential_step(X, (A @ B.mT).view(X.shape), lr))
            else:
                Y.copy_(rotate_factored(Y, omega, torch.full_like(omega.norm, -lr), AX))
        return torch.ones(n, dtype=torch.bool, device=X.device)

    def fits(self, X: Tensor, B: Tensor, V: Tensor) -> bool:
        """Whether V is X B, tested on another row at each step; waits for the device."""
        self._checks += 1
        row = self._checks % X.shape[1]
        with full_precision():
            error = X[:, row, None] @ B - V[:, row, None]
        length = _tolerance(X) * torch.linalg.vector_norm(B, dim=(-2, -1))
        return bool((torch.linalg.vector_norm(error, dim=(-2, -1)) <= length).all())

    def _on_device(
        self,
        X: Tensor,
        A: Tensor,
        B: Tensor,
        lr: float,
        V: Tensor | None,
        AX: Tensor | None,
        flag: Tensor | None = None,
    ) -> Bool[Tensor, "n"]:
        rank, has_v, has_ax = A.shape[-1], V is not None, AX is not None
        kind = (X.shape, X.device, has_v, has_ax)
        workspace = self._workspaces.get(kind)
        if workspace is None or not workspace.fits(rank):
            from ._launches_triton import FactoredWorkspace

            workspace = FactoredWorkspace(X, rank, has_v=has_v, has_ax=has_ax)
            self._workspaces[kind] = workspace
        if is_capturing():  # the graph knows the memory by its address
            self._captured.add(workspace)
        row = self._calls % X.shape[1]
        done = workspace(X, A, B, lr, V, AX, row, _tolerance(X), flag)
        increment_version(X)  # kernels know nothing of autograd
        return done


def is_decided_on_device(X: Tensor) -> bool:
    """Whether the step never waits, so that errors of factors are known only later."""
    return X.device.type == "cuda" and X.dtype == torch.float32


def _tolerance(X: Tensor) -> float:
    return TOLERANCE if is_exact(X) else COARSE_TOLERANCE
