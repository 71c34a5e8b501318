"""Everything a user could take instead of FlowSGD: torch's optimisers, textbook steps, libraries.

Each entry of `BASELINES` makes a `Method` from parameters that have their gradients. All of them
minimise with the same `LR`. The textbook steps and the libraries get every weight as the tall
matrix of `MatrixView`, one after the other, as a loop over a model's parameters would.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal

from skewflow.geometry.matrices import as_matrices

from ...measure.timing import Step

LR = 1e-3

Update = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Method:
    """One way to step some weights.

    Args:
        step: Moves all weights once.
        weights: Where they are now, as tall matrices.
    """

    step: Step
    weights: Callable[[], list[Tensor]]


Make = Callable[[Sequence[nn.Parameter]], Method]


def optimizer(make: Callable[..., torch.optim.Optimizer], **options: Any) -> Make:
    """An optimiser that takes plain parameters and moves them in place."""

    def made(params: Sequence[nn.Parameter]) -> Method:
        return Method(make(params, lr=LR, **options).step, lambda: _tall(params))

    return made


def exact_exponential(X: Tensor, G: Tensor) -> Tensor:
    """X <- exp(-lr Omega) X with the (d, d) exponential (Eq. 4)."""
    S = G @ X.mT
    return torch.linalg.matrix_exp(LR * (S.mT - S)) @ X


def cayley_solve(X: Tensor, G: Tensor) -> Tensor:
    """X <- (I + lr/2 Omega)^-1 (I - lr/2 Omega) X by one solve (Wen and Yin 2013).

    The solve is with a (d, d) matrix, or with a (2k, 2k) one where that is smaller (their Lemma 4).
    """
    d, k = X.shape[-2:]
    if 2 * k >= d:
        S = G @ X.mT
        half = LR / 2 * (S - S.mT)
        return torch.linalg.solve(_plus_identity(half.clone()), X - half @ X)
    U, V = torch.cat([G, X], -1), torch.cat([X, -G], -1)  # Omega = U V^T
    return X - LR * U @ torch.linalg.solve(_plus_identity(LR / 2 * V.mT @ U), V.mT @ X)


def landing(X: Tensor, G: Tensor) -> Tensor:
    """X <- X - lr (skew(G X^T) X + X (X^T X - I)), no retraction (Ablin and Peyre 2022)."""
    P = X.mT @ X
    return X - LR * (G @ P / 2 + X @ _plus_identity(P - G.mT @ X / 2, -1.0))


def qr_retraction(X: Tensor, G: Tensor) -> Tensor:
    """X <- qf(X - lr grad) with the canonical gradient G - X G^T X (Sec. 2 of the paper)."""
    Q, T = torch.linalg.qr(X - LR * (G - X @ (G.mT @ X)))
    return Q * T.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)


def in_turn(update: Update) -> Make:
    """The method that applies `update` to one weight after the other."""

    def made(params: Sequence[nn.Parameter]) -> Method:
        pairs = list(zip(_tall(params), _tall_gradients(params), strict=True))

        @torch.no_grad()
        def step() -> None:
            for X, G in pairs:
                X.copy_(update(X, G))

        return Method(step, lambda: [X for X, _ in pairs])

    return made


def geoopt(
    matrices: Sequence[Tensor],
    lr: float,
    momentum: float = 0.0,
    *,
    adam: bool = False,
    canonical: bool = True,
) -> torch.optim.Optimizer:
    """RiemannianSGD or RiemannianAdam of geoopt, of tall matrices.

    Its canonical Stiefel manifold, the default, is retracted by a (d, d) solve, the other by QR.
    """
    from geoopt import ManifoldParameter, Stiefel
    from geoopt.optim import RiemannianAdam, RiemannianSGD

    points = [ManifoldParameter(X, manifold=Stiefel(canonical=canonical)) for X in matrices]
    made: torch.optim.Optimizer = (
        RiemannianAdam(points, lr=lr) if adam else RiemannianSGD(points, lr=lr, momentum=momentum)
    )
    return made


def pogo(
    matrices: Sequence[Tensor], lr: float, momentum: float = 0.0, *, adam: bool = False
) -> torch.optim.Optimizer:
    """POGO of pogo-torch with its SGD or its VectorAdam base, of tall matrices or batches."""
    from pogo import POGO, base

    points = [nn.Parameter(X) for X in matrices]
    options: dict[str, Any] = {"flatten_fn": _batched, "rows": False}
    how = base.VectorAdam() if adam else base.SGD(momentum)
    made: torch.optim.Optimizer = POGO(points, how, lr=lr, **options)
    return made


def of_tall(make: Callable[..., torch.optim.Optimizer]) -> Make:
    """An optimiser that takes tall matrices only and moves them in place."""

    def made(params: Sequence[nn.Parameter]) -> Method:
        optimizer = make(_tall(params), LR)
        points = optimizer.param_groups[0]["params"]
        for point, G in zip(points, _tall_gradients(params), strict=True):
            point.grad = G
        return Method(optimizer.step, lambda: [p.data for p in points])

    return made


def free_parameters(X: Tensor, constrain: Callable[[nn.Module], object]) -> nn.Module:
    """A module whose `weight` is the tall matrix X, behind parameters that are free to move."""
    layer = nn.Module()
    layer.weight = nn.Parameter(X.clone(memory_format=torch.contiguous_format))
    constrain(layer)
    layer.weight = X  # the same start for all: some libraries draw their own
    return layer


def parametrised(constrain: Callable[[nn.Module], object]) -> Make:
    """SGD on the free parameters behind orthogonal weights.

    What such a parametrisation costs besides the model is timed: the weight is computed from its
    free parameters, the gradient is taken back to them, and SGD moves them. A model would compute
    the weight in its forward pass; there it would be paid all the same.
    """

    def made(params: Sequence[nn.Parameter]) -> Method:
        gradients = _tall_gradients(params)
        layers = [free_parameters(X, constrain) for X in _tall(params)]
        free = [p for layer in layers for p in layer.parameters()]
        sgd = torch.optim.SGD(free, lr=LR)

        def step() -> None:
            sgd.zero_grad()
            with torch.enable_grad():
                for layer, G in zip(layers, gradients, strict=True):
                    layer.weight.backward(G)  # type: ignore[operator]
            sgd.step()

        return Method(step, lambda: [layer.weight.detach() for layer in layers])  # type: ignore[operator]

    return made


def geotorch(params: Sequence[nn.Parameter]) -> Method:
    """The orthogonal parametrisation of geotorch with its default map, the exponential."""
    import geotorch as library

    return parametrised(lambda layer: library.orthogonal(layer, "weight"))(params)


BASELINES: dict[str, Make] = {
    "exact exp": in_turn(exact_exponential),
    "Cayley solve": in_turn(cayley_solve),
    "landing": in_turn(landing),
    "QR retraction": in_turn(qr_retraction),
    "geoopt RiemannianSGD": of_tall(geoopt),
    "geotorch": geotorch,
    "torch orthogonal": parametrised(orthogonal),
    "pogo-torch": of_tall(pogo),
}
"""Steps that keep weights orthogonal, by the name they have in tables."""

PARAMETRISATIONS = ("geotorch", "torch orthogonal")
"""Names in `BASELINES` that `parametrised` makes."""


def _tall(params: Sequence[nn.Parameter]) -> list[Tensor]:
    return [as_matrices(p.detach())[0] for p in params]


def _tall_gradients(params: Sequence[nn.Parameter]) -> list[Tensor]:
    return [as_matrices(p.grad)[0] for p in params if p.grad is not None]


def _batched(X: Tensor) -> Tensor:
    return X if X.ndim > 2 else X.unsqueeze(0)


def _plus_identity(A: Tensor, factor: float = 1.0) -> Tensor:
    """A + factor I, in place."""
    A.diagonal(dim1=-2, dim2=-1).add_(factor)
    return A
