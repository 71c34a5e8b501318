"""Steps to compare with, each as its paper states it, in a few lines of torch."""

from collections.abc import Callable

import torch
from torch import Tensor

Step = Callable[[], object]
LR = 1e-3


def exact_exponential(X: Tensor, G: Tensor) -> Step:
    """X <- exp(-lr Omega) X with the (d, d) exponential (Eq. 4)."""

    def step() -> None:
        S = G @ X.mT
        X.copy_(torch.linalg.matrix_exp(LR * (S.mT - S)) @ X)

    return step


def cayley_solve(X: Tensor, G: Tensor) -> Step:
    """X <- (I + lr/2 Omega)^-1 (I - lr/2 Omega) X by one solve (Wen and Yin 2013)."""
    I = torch.eye(X.shape[0], device=X.device, dtype=X.dtype)

    def step() -> None:
        S = G @ X.mT
        half = LR / 2 * (S - S.mT)
        X.copy_(torch.linalg.solve(I + half, X - half @ X))

    return step


def landing(X: Tensor, G: Tensor) -> Step:
    """X <- X - lr (skew(G X^T) X + X (X^T X - I)), no retraction (Ablin and Peyre 2022)."""
    I = torch.eye(X.shape[1], device=X.device, dtype=X.dtype)

    def step() -> None:
        S = G @ X.mT
        X.sub_((S - S.mT) @ X / 2 + X @ (X.mT @ X - I), alpha=LR)

    return step


def qr_retraction(X: Tensor, G: Tensor) -> Step:
    """X <- qf(X - lr grad) with the Riemannian gradient."""

    def step() -> None:
        R = G - X @ (G.mT @ X)
        Q, T = torch.linalg.qr(X - LR * R)
        X.copy_(Q * T.diagonal().sign())

    return step


def geoopt(X: Tensor, G: Tensor) -> Step:
    """RiemannianSGD of geoopt on its canonical Stiefel manifold."""
    import geoopt as library

    p = library.ManifoldParameter(X.clone(), manifold=library.Stiefel(canonical=True))
    p.grad = G
    return library.optim.RiemannianSGD([p], lr=LR).step


def parametrisation(X: Tensor, G: Tensor) -> Step:
    """torch.nn.utils.parametrizations.orthogonal: forward, backward and SGD on its parameters."""
    layer = torch.nn.Linear(X.shape[1], X.shape[0], bias=False, device=X.device, dtype=X.dtype)
    torch.nn.utils.parametrizations.orthogonal(layer, orthogonal_map="matrix_exp")
    optimizer = torch.optim.SGD(layer.parameters(), lr=LR)

    def step() -> None:
        with torch.enable_grad():
            optimizer.zero_grad()
            layer.weight.backward(G)  # type: ignore[no-untyped-call]
            optimizer.step()

    return step


def pogo(X: Tensor, G: Tensor) -> Step:
    """POGO of pogo-torch with its SGD base."""
    from pogo import POGO, base

    p = torch.nn.Parameter(X.clone())
    p.grad = G
    return POGO([p], base.SGD(), lr=LR, flatten_fn=lambda x: x.unsqueeze(0), rows=False).step


BASELINES: dict[str, Callable[[Tensor, Tensor], Step]] = {
    "exact exp": exact_exponential,
    "Cayley solve": cayley_solve,
    "landing": landing,
    "QR": qr_retraction,
    "geoopt": geoopt,
    "torch parametrisation": parametrisation,
    "pogo-torch": pogo,
}
