"""Inclusion probabilities of edges, for Horvitz-Thompson weights (not in the paper)."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..._typing import MatrixBlocks
from ..edge_weights import EdgeWeights
from ..partitions import BlockSize, Partition
from ..weight_functions import H, h_values
from .counting import joint_edge_probabilities


def h_regular_inclusion(
    W: EdgeWeights, partition: Partition, block_size: BlockSize, h: H = "abs"
) -> MatrixBlocks:
    r"""$\pi_{ij} = P(ij \in T)$ under the h-regular law, for the edges of `partition`.

    $\pi_{ij} = [h_{ij} + a(R_i + R_j - 2h_{ij}) + \kappa(H - R_i - R_j + h_{ij})] / H$ with row
    sums R, $H = \frac12\sum R$, and $a, \kappa$ of `joint_edge_probabilities`. Weights $1/\pi$
    instead of $1/(W p_T)$ are unbiased too and never have more variance, by the inequality of
    arithmetic and harmonic means (not in the paper).

    Returns:
        One (l, s, s) tensor for each block size, with diagonals of 1.

    Example:
        >>> W = EdgeWeights.of(torch.tensor([[0., 5, 1, 0], [-5, 0, 0, 1], [-1, 0, 0, 2],
        ...                                  [0, -1, -2, 0]]))
        >>> h_regular_inclusion(W, Partition.of([[0, 1], [2, 3]]), 2)[0][0]
        tensor([[1.0000, 0.7778],
                [0.7778, 1.0000]])
    """
    R = W.row_sums(h)
    total = R.sum() / 2
    a, kappa = (float(p) for p in joint_edge_probabilities(W.d, block_size))
    result = []
    for b, omega in zip(partition.blocks, W.blocks(partition), strict=True):
        h_ij = h_values(h, omega)
        pair = R[b][:, :, None] + R[b][:, None, :]
        pi = (h_ij + a * (pair - 2 * h_ij) + kappa * (total - pair + h_ij)) / total
        eye = torch.eye(b.shape[1], dtype=R.dtype, device=R.device)
        result.append(torch.where(eye.bool(), eye, pi).to(W.dtype))
    return tuple(result)


def h_regular_inclusion_dense(
    W: EdgeWeights, block_size: BlockSize, h: H = "abs"
) -> Float[Tensor, "d d"]:
    r"""All $\pi_{ij}$ of the h-regular law as a matrix, 1 on the diagonal (not in the paper).

    Example:
        >>> W = EdgeWeights.of(torch.tensor([[0., 1, 1], [-1, 0, 1], [-1, -1, 0]]))
        >>> h_regular_inclusion_dense(W, 2)[0]
        tensor([1.0000, 0.3333, 0.3333])
    """
    whole = Partition((torch.arange(W.d, device=W.device)[None],))
    return h_regular_inclusion(W, whole, block_size, h)[0][0]
