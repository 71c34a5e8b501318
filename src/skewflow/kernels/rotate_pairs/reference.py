"""Reference of `rotate_pairs`: disjoint plane rotations by cosine and sine (Eq. 9)."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ... import _validate
from ...errors import NonFiniteError, ShapeError
from ...tournaments.partitions import edge_probability
from ..permutation import matching_at
from ..update import Update, apart, beside, direction


def rotate_pairs(
    X: Float[Tensor, "d k"],
    pairs: Int[Tensor, "m 2"],
    theta: Float[Tensor, "m"],
    retraction: Literal["exp", "cayley"] = "exp",
) -> Float[Tensor, "d k"]:
    r"""Rotate disjoint row pairs of `X`, in O(mk) (Eq. 9).

    Rows (i, j) become $\cos\theta X_i + \sin\theta X_j$ and $\cos\theta X_j - \sin\theta X_i$,
    which is $\exp(\sum\theta H_{ij}) X$ because the pairs are disjoint. Cayley's rotates by
    $2\arctan(\theta/2)$ instead of $\theta$.

    Args:
        X: Matrix to rotate; not modified.
        pairs: Disjoint row indices (i, j).
        theta: Angle of each pair: $\eta\hat\Omega_{ij}$ in an update.
        retraction: "exp" or "cayley".

    Example:
        >>> rotate_pairs(torch.eye(2), torch.tensor([[0, 1]]), torch.tensor([0.1]))
        tensor([[ 0.9950,  0.0998],
                [-0.0998,  0.9950]])
    """
    _validate.one_of(retraction, ("exp", "cayley"), "retraction")
    _validate.matrix(X, "X")
    _check(X, pairs, theta)
    angle = theta if retraction == "exp" else 2 * torch.atan(theta / 2)
    i, j = pairs.unbind(-1)
    c, s = angle.cos()[:, None], angle.sin()[:, None]  # (m, 1)
    Xi, Xj = X[i], X[j]  # (m, k)
    return X.index_copy(0, i, c * Xi + s * Xj).index_copy(0, j, c * Xj - s * Xi)


def step_pairs(
    X: Float[Tensor, "n d k"],
    G: Float[Tensor, "n d k"],
    M: Float[Tensor, "n d k"] | None,
    step: Int[Tensor, ""],
    update: Update,
    moments: Float[Tensor, "n d"] | None = None,
) -> tuple[Float[Tensor, "n d k"], Float[Tensor, "n d k"] | None]:
    r"""One step of s = 2 on a batch of points: momentum, $\hat\Omega$, rotation.

    Every matrix draws its own uniform matching (`matching_at`); the rows (i, j) of a pair turn by
    $\theta = -lr \cdot c\,(D_i \cdot X_j - X_i \cdot D_j)$ with the direction D and the weight
    $c = 1/P(e)$: d - 1 for even d, d for odd. The momentum turns with its rows. An unpaired row is
    not rotated, but its momentum is updated. With `num_draws` = m the step is a product of m such
    rotations by $\theta/m$, of m matchings at the same point.

    Args:
        X: Points, n matrices with orthonormal columns.
        G: Euclidean gradients.
        M: Momentum buffers, or None.
        step: Steps done before.
        update: Step size, momentum and seed.
        moments: Second moments w of the rows, or None: then $\theta$ is divided by
            $\sqrt{(w_i + w_j)/2}$.

    Returns:
        The new points and the new momentum.
    """
    D, M = direction(G.to(X.dtype), M, update)
    d, k = X.shape[-2:]
    scale = float(1 / edge_probability(d, 2))
    rotated = []
    for b, (X_b, D_b, XM_b) in enumerate(zip(X, D, beside(X, M), strict=True)):
        stream, independent = update.stream + b, update.independent
        for draw in range(update.num_draws):
            time = step * update.num_draws + draw
            pairs, _ = matching_at(d, update.seed, stream, time, independent=independent)
            i, j = pairs.unbind(-1)
            omega = (D_b[i] * X_b[j] - X_b[i] * D_b[j]).sum(-1)
            if moments is not None:
                omega = omega / ((moments[b, i] + moments[b, j]) / 2).sqrt().to(omega)
            theta = -update.lr_of_draw * scale * omega
            XM_b = rotate_pairs(XM_b, pairs, theta, update.retraction)
        rotated.append(XM_b)
    return apart(torch.stack(rotated), k)


def _check(X: Tensor, pairs: Tensor, theta: Tensor) -> None:
    """One finite angle for each of some disjoint pairs of rows of one matrix."""
    if X.ndim != 2:
        raise ShapeError(f"`X` must be one matrix (d, k): got shape {tuple(X.shape)}.")
    _validate.pairs(pairs, X.shape[0])
    if len(torch.unique(pairs)) != pairs.numel():
        raise ShapeError(
            "`pairs` must be disjoint, or the rotations would not commute: a row occurs twice. "
            "Rotate overlapping pairs one after the other."
        )
    _validate.floating(theta, "theta")
    if theta.shape != pairs.shape[:1] or theta.dtype != X.dtype:
        raise ShapeError(
            f"`theta` must hold one angle of {X.dtype} for each of the {len(pairs)} pairs: got "
            f"shape {tuple(theta.shape)} of {theta.dtype}."
        )
    if not torch.isfinite(theta).all():
        raise NonFiniteError("`theta` must be finite: got NaN or infinity. Lower the step size.")
