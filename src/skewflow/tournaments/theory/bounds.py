r"""Balance of Omega and bounds on the largest h(G_T) (Sec. 3.2.1, Sec. 9.2)."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..edge_weights import EdgeWeights
from ..partition_weights import partition_weight
from ..partitions import BlockSize, Partition, block_sizes
from ..weight_functions import H, h_values
from .enumeration import enumerate_partitions


def balance(W: EdgeWeights, beta: float, h: H = "abs") -> float:
    r"""The largest $\alpha$ for which $\Omega$ is $(\alpha, \beta, h)$-balanced (Sec. 3.2.1).

    It is the fraction of all $d^2$ entries, diagonal included, with $h \ge \beta \max h$.

    Example:
        >>> W = EdgeWeights.of(torch.tensor([[0., 4, 4], [-4, 0, 1], [-4, -1, 0]]))
        >>> balance(W, beta=0.5)
        0.4444444444444444
    """
    if not 0 < beta <= 1:
        raise ValueError(f"`beta` must lie in (0, 1]: got {beta}.")
    values = h_values(h, W.dense())
    return (values >= beta * values.max()).to(torch.float64).mean().item()


def balanced_tau_ratio(d: int, block_size: BlockSize, alpha: float, beta: float) -> float:
    r"""$\rho = \min(1, \frac{s-1}{d\alpha\beta})$ of version II (Algorithm 1).

    If $\Omega$ is $(\alpha, \beta, h)$-balanced, $\tau^* \le \rho\|h(\Omega)\|_1$, because
    $\tau^* \le d(s-1)\max h$ and $\|h(\Omega)\|_1 \ge \alpha\beta d^2 \max h$. This is tighter than
    the paper's $\frac{s}{d\alpha\beta}$. A ratio above 1 makes version I the better choice, hence
    the minimum.

    Example:
        >>> balanced_tau_ratio(8, 2, alpha=0.5, beta=0.5)
        0.5
    """
    if not (0 < alpha <= 1 and 0 < beta <= 1):
        raise ValueError(f"`alpha` and `beta` must lie in (0, 1]: got {alpha} and {beta}.")
    s = block_sizes(d, block_size)[0][0]
    return min(1.0, (s - 1) / (d * alpha * beta))


def heavy_partition(W: EdgeWeights, block_size: BlockSize, h: H = "abs") -> Partition:
    """A partition with a large h(G_T), found greedily in O(d^2) given Omega (not in the paper).

    Each block starts with the heaviest edge of the free rows and then takes the row with the most
    weight to it until it is full. Twice its weight is a lower bound on tau*; `certified_tau` is an
    upper bound.

    Example:
        >>> W = EdgeWeights.of(torch.tensor([[0., 5, 1, 0], [-5, 0, 0, 1], [-1, 0, 0, 2],
        ...                                  [0, -1, -2, 0]]))
        >>> sorted(heavy_partition(W, 2))
        [(0, 1), (2, 3)]
    """
    values = h_values(h, W.dense())
    free = torch.ones(W.d, dtype=torch.bool, device=W.device)
    order: list[int] = []
    for size, count in block_sizes(W.d, block_size):
        for _ in range(count):
            first = int(torch.where(free, (values * free).amax(1), -torch.inf).argmax())
            free[first] = False
            block, weight_to_block = [first], values[first].clone()
            while len(block) < size:
                row = int(torch.where(free, weight_to_block, -torch.inf).argmax())
                free[row] = False
                weight_to_block += values[row]
                block.append(row)
            order += block
    rows = torch.tensor(order, device=W.device)
    return Partition.from_order(rows, block_sizes(W.d, block_size))


def tau_star(W: EdgeWeights, block_size: BlockSize, h: H = "abs") -> float:
    r"""$\tau^* = 2\max_{T \in T_s} h(G_T)$, by enumeration at small d (Sec. 3.2.1).

    Example:
        >>> W = EdgeWeights.of(torch.tensor([[0., 5, 1, 0], [-5, 0, 0, 1], [-1, 0, 0, 2],
        ...                                  [0, -1, -2, 0]]))
        >>> tau_star(W, 2)
        14.0
    """
    return 2 * max(partition_weight(W, T, h) for T in enumerate_partitions(W.d, block_size))


def certified_tau(W: EdgeWeights, block_size: BlockSize, h: H = "abs") -> float:
    r"""An upper bound on $\tau^*$ for any $\Omega$, in $O(d^2)$ given $\Omega$ (not in the paper).

    It is the minimum of three bounds: the sum over all rows of their s - 1 largest entries of
    $h(\Omega)$, twice the sum of the m largest entries of the triangle, and $\|h(\Omega)\|_1$.

    Example:
        >>> W = EdgeWeights.of(torch.tensor([[0., 3, 0, 0], [-3, 0, 2, 0], [0, -2, 0, 1],
        ...                                  [0, 0, -1, 0]]))
        >>> tau_star(W, 2), certified_tau(W, 2)
        (8.0, 9.0)
    """
    values = h_values(h, W.dense())
    return min(_row_bound(values, block_size), gamma(W, block_size, h), values.sum().item())


def certified_norm(W: EdgeWeights, block_size: BlockSize) -> float:
    r"""An upper bound on $\max_T \sqrt{\sum_{e \in T} w_e^2}$ for any $\Omega$ (not in the paper).

    Example:
        >>> W = EdgeWeights.of(torch.tensor([[0., 3, 0, 0], [-3, 0, 2, 0], [0, -2, 0, 1],
        ...                                  [0, 0, -1, 0]]))
        >>> round(certified_norm(W, 2), 3)
        3.391
    """
    return (certified_tau(W, block_size, "square") / 2) ** 0.5


def gamma(W: EdgeWeights, block_size: BlockSize, h: H = "abs") -> float:
    r"""$\gamma_\Omega(s, d, h)$: the sum of the 2m largest entries of $h(\Omega)$ (Sec. 9.2).

    $\tau^* \le \gamma$ needs $2m = d(s-1)$ entries of the full matrix, twice the m largest of the
    triangle. The paper sums only $\frac ds\binom s2 = m$ of the full matrix, which can be as small
    as $\tau^*/2$.

    Example:
        >>> W = EdgeWeights.of(torch.tensor([[0., 3, 0, 0], [-3, 0, 2, 0], [0, -2, 0, 1],
        ...                                  [0, 0, -1, 0]]))
        >>> tau_star(W, 2), gamma(W, 2)
        (8.0, 10.0)
    """
    i, j = torch.triu_indices(W.d, W.d, offset=1, device=W.device)
    values = h_values(h, W.dense()[i, j])
    m = sum(count * size * (size - 1) // 2 for size, count in block_sizes(W.d, block_size))
    return 2 * values.topk(m, sorted=False).values.sum().item()


def rho(W: EdgeWeights, block_size: BlockSize, h: H = "abs") -> float:
    r"""$\rho = \|h(\Omega)\|_1 / \gamma_\Omega(s, d, h)$ of the ablation (Sec. 9.2).

    The paper plots it together with d/s. A large value means that version II of Algorithm 1 accepts
    often.

    Example:
        >>> W = EdgeWeights.of(torch.ones(4, 4).triu(1) - torch.ones(4, 4).tril(-1))
        >>> rho(W, 2)
        3.0
    """
    norm = W.h_norm(h)
    if norm == 0.0:
        raise ValueError("`rho` needs an Omega that is not zero: got one whose weights are all 0.")
    return norm / gamma(W, block_size, h)


def _row_bound(values: Float[Tensor, "d d"], block_size: BlockSize) -> float:
    s = block_sizes(len(values), block_size)[0][0]
    return values.topk(s - 1, dim=1, sorted=False).values.sum().item()
