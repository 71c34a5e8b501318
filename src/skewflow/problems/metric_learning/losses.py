"""Losses of an embedded batch with its classes (not in the paper)."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

MARGIN = 1.0
"""Squared distance beyond which a pair or a triplet of different classes costs nothing."""


def nca(Z: Float[Tensor, "b k"], y: Int[Tensor, "b"]) -> Float[Tensor, ""]:
    r"""Neighbourhood components analysis (Goldberger et al. 2004), its logarithmic form.

    The mean over i of $-\log\sum_{j: y_j = y_i} p_{ij}$, $p_{ij} \propto \exp(-|z_i - z_j|^2)$.
    """
    distances, same, other = _pairs(Z, y)
    logits = (-distances).masked_fill(~(same | other), -torch.inf)
    rows = same.any(1)
    matched = logits.masked_fill(~same, -torch.inf)[rows].logsumexp(1)
    return (logits[rows].logsumexp(1) - matched).sum() / max(1, int(rows.sum()))


def triplets(Z: Float[Tensor, "b k"], y: Int[Tensor, "b"]) -> Float[Tensor, ""]:
    """Each point, its nearest of the same class, and all others that come within a margin.

    The hinge of large margin nearest neighbours (Weinberger and Saul 2009) with neighbours that
    are found in the batch.
    """
    distances, same, other = _pairs(Z, y)
    rows = same.any(1) & other.any(1)
    near = distances.masked_fill(~same, torch.inf)[rows].amin(1)
    hinge = (MARGIN + near[:, None] - distances[rows]).clamp(min=0) * other[rows]
    pushed = hinge.sum(1) / other[rows].sum(1).clamp(min=1)
    return (near + len(Z) * pushed / 2).sum() / max(1, int(rows.sum()))


def pairs(Z: Float[Tensor, "b k"], y: Int[Tensor, "b"]) -> Float[Tensor, ""]:
    """Contrastive loss (Hadsell et al. 2006): small distances inside, a margin between classes."""
    distances, same, other = _pairs(Z, y)
    pull = (distances * same).sum() / max(1, int(same.sum()))
    push = ((MARGIN - (distances + 1e-12).sqrt()).clamp(min=0) ** 2 * other).sum()
    return pull + push / max(1, int(other.sum()))


def _pairs(Z: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared distances, pairs of the same class, and pairs of different ones."""
    squares = (Z * Z).sum(1)
    distances = (squares[:, None] + squares - 2 * Z @ Z.mT).clamp(min=0)
    equal = y[:, None] == y
    return distances, equal & ~torch.eye(len(y), dtype=torch.bool), ~equal


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "nca": nca,
    "triplets": triplets,
    "pairs": pairs,
}
"""Losses by name."""
