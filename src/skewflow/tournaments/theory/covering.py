r"""General covering families: the matrix M of Eq. 6 and the optimal law (Lemma 3.2)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import FamilyError
from ..edge_weights import EdgeWeights
from ..partitions import Partition
from ..tournament import Tournament


def covering_matrix(partitions: Sequence[Partition]) -> Float[Tensor, "d d"]:
    r"""$M_{ij} = 1/\#\{T : ij \in E(G_T)\}$ of a covering family, in float64 (Eq. 6).

    The diagonal is 1. The other entries are constant for a *homogeneous* family: 1/W for all of
    T_s and 1 for a non-intersecting family.

    Raises:
        FamilyError: If an edge lies in no partition, so that no weights make the estimate unbiased.

    Example:
        >>> covering_matrix([Partition.of([[0, 1, 2]]), Partition.of([[0, 1], [2]])])[0]
        tensor([1.0000, 0.5000, 1.0000], dtype=torch.float64)
    """
    if not partitions:
        raise FamilyError("a covering family needs at least one partition: got none.")
    d = partitions[0].d
    count = torch.eye(d, dtype=torch.float64)
    for partition in partitions:
        if partition.d != d:
            raise FamilyError(
                f"the partitions of a family must cover the same rows: got d={d} and "
                f"d={partition.d}."
            )
        i, j = partition.edges().cpu().unbind(-1)
        count[i, j] += 1
        count[j, i] += 1
    if (count == 0).any():
        i, j = (count == 0).nonzero()[0].tolist()
        raise FamilyError(
            f"a covering family must hold every edge at least once: edge ({i}, {j}) lies in none "
            f"of the {len(partitions)} partitions. Add one that holds it."
        )
    return 1 / count


def covering_estimate(partition: Partition, p: float, M: Float[Tensor, "d d"]) -> Tournament:
    r"""$\Omega_T = \frac{1}{p_T} M \odot \Omega[T]$, the estimate of Eq. 6 for one member.

    Args:
        partition: T.
        p: Its probability, positive.
        M: `covering_matrix` of the family.

    Example:
        >>> W = EdgeWeights.of(torch.tensor([[0.0, 2.0], [-2.0, 0.0]]))
        >>> T = Partition.of([[0, 1]])
        >>> covering_estimate(T, 0.5, covering_matrix([T])).dense(W)
        tensor([[ 0.,  4.],
                [-4.,  0.]])
    """
    if not p > 0:
        raise ValueError(f"`p` must be a positive probability: got {p}.")
    blocks = (b.to(M.device) for b in partition.blocks)
    weights = tuple(M[b[:, :, None], b[:, None, :]] / p for b in blocks)
    return Tournament(partition, weights)


def optimal_probabilities(partitions: Sequence[Partition], W: EdgeWeights) -> Float[Tensor, "n"]:
    r"""The variance-minimising $p_T \propto \sqrt{\sum_{e\in T} (M\odot\Omega)_e^2}$ (Lemma 3.2).

    They are optimal for the weights of Eq. 6; Horvitz-Thompson weights can have less variance.

    Example:
        >>> from skewflow.tournaments import round_robin
        >>> W = EdgeWeights.of(torch.tensor([[0., 1, 0], [-1, 0, 3], [0, -3, 0]]))
        >>> sorted(optimal_probabilities(list(round_robin(3)), W).tolist())
        [0.0, 0.25, 0.75]
    """
    W.check_partition(partitions[0])
    scaled = covering_matrix(partitions) * W.dense().to("cpu", torch.float64)
    norms = []
    for partition in partitions:
        i, j = partition.edges().cpu().unbind(-1)
        norms.append(scaled[i, j].norm())
    a = torch.stack(norms)
    if a.sum() == 0:  # Omega = 0: any law is optimal
        a = torch.ones_like(a)
    return a / a.sum()
