r"""The weights h(G_T) and norms of partitions and of the members of a family (Sec. 3.2)."""

import torch
from jaxtyping import Float
from torch import Tensor

from .edge_weights import EdgeWeights
from .families import Family
from .partitions import Partition
from .weight_functions import H, h_values


def partition_weight(W: EdgeWeights, partition: Partition, h: H = "abs") -> float:
    r"""$h(G_T) = \sum_{e \in G_T} h(w_e)$ (Lemma 3.5).

    Example:
        >>> W = EdgeWeights.of(torch.tensor([[0., 5, 1, 0], [-5, 0, 0, 1], [-1, 0, 0, 2],
        ...                                  [0, -1, -2, 0]]))
        >>> partition_weight(W, Partition.of([[0, 1], [2, 3]]))
        7.0
    """
    return sum(h_values(h, omega).sum().item() for omega in W.blocks(partition)) / 2


def partition_norm(W: EdgeWeights, partition: Partition) -> float:
    r"""$a_T = \sqrt{\sum_{e \in T} w_e^2}$, to which the optimal $p_T$ is proportional (Lemma 3.2).

    Example:
        >>> W = EdgeWeights.of(torch.tensor([[0., 5, 1, 0], [-5, 0, 0, 1], [-1, 0, 0, 2],
        ...                                  [0, -1, -2, 0]]))
        >>> partition_norm(W, Partition.of([[0, 1], [2], [3]]))
        5.0
    """
    return partition_weight(W, partition, "square") ** 0.5


def family_sums(W: EdgeWeights, family: Family, h: H) -> Float[Tensor, "n"]:
    """h(G_T) of every member of a non-intersecting family, the K(e) of Lemma 9.7.

    Costs O(d^2) once Omega is known.

    Example:
        >>> from skewflow.tournaments import round_robin
        >>> W = EdgeWeights.of(torch.tensor([[0., 5, 1, 0], [-5, 0, 0, 1], [-1, 0, 0, 2],
        ...                                  [0, -1, -2, 0]]))
        >>> family_sums(W, round_robin(4), "abs")
        tensor([0., 2., 7.], dtype=torch.float64)
    """
    i, j = torch.triu_indices(W.d, W.d, offset=1)
    values = h_values(h, W.dense().cpu()[i, j])
    sums = torch.zeros(len(family), dtype=torch.float64)
    return sums.index_add_(0, family.colours[i, j], values)
