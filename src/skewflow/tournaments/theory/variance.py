r"""Variance of every estimator, by formula and by enumeration (Sec. 9.6, 9.7)."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..edge_weights import EdgeWeights
from ..families import Family
from ..partition_weights import family_sums, partition_norm, partition_weight
from ..partitions import BlockSize, edge_probability
from ..tournament import Law
from ..weight_functions import H
from .counting import num_partitions_with_edge
from .enumeration import enumerate_partitions


def exact_variance(law: Law, W: EdgeWeights) -> float:
    r"""The variance $\sum_T p_T \|\hat\Omega_T - \Omega\|_F^2$ of a law (the one of Lemma 3.2).

    Example:
        >>> from skewflow.samplers import Uniform
        >>> W = EdgeWeights.of(torch.tensor([[0., 5, 1, 0], [-5, 0, 0, 1], [-1, 0, 0, 2],
        ...                                  [0, -1, -2, 0]]))
        >>> round(exact_variance(Uniform(2).law(W), W), 6)
        124.0
    """
    omega = W.dense()
    return sum(p * (t.dense(W) - omega).square().sum().item() for t, p in law)


def uniform_variance(W: EdgeWeights, block_size: BlockSize) -> float:
    r"""The variance $\frac{d-s}{s-1}\|\Omega\|_F^2$ of the uniform law (Lemma 9.6).

    For unequal sizes the factor is $1/P(e) - 1$ (not in the paper). By Lemma 9.5 the h-regular law
    with $h(x) = x^2$ has the same variance if no $h(G_T)$ is zero.

    Example:
        >>> W = EdgeWeights.of(torch.tensor([[0., 5, 1, 0], [-5, 0, 0, 1], [-1, 0, 0, 2],
        ...                                  [0, -1, -2, 0]]))
        >>> uniform_variance(W, 2)
        124.0
    """
    return (1 / float(edge_probability(W.d, block_size)) - 1) * W.squared_norm()


def h_regular_variance(W: EdgeWeights, block_size: BlockSize, h: H = "abs") -> float:
    r"""The variance of the h-regular law on T_s (Lemma 9.4).

    $\frac{\|h(\Omega)\|_1}{2W}\sum_T \frac{\|\Omega[T]\|_F^2}{h(G_T)} - \|\Omega\|_F^2$,
    a sum over all of T_s and thus for small d.

    Example:
        >>> W = EdgeWeights.of(torch.tensor([[0., 5, 1, 0], [-5, 0, 0, 1], [-1, 0, 0, 2],
        ...                                  [0, -1, -2, 0]]))
        >>> round(h_regular_variance(W, 2), 3)
        30.571
    """
    total = 0.0
    for T in enumerate_partitions(W.d, block_size):
        weight = partition_weight(W, T, h)
        if weight > 0:
            total += 2 * partition_weight(W, T, "square") / weight
    ways = num_partitions_with_edge(W.d, block_size)
    return W.h_norm(h) / (2 * ways) * total - W.squared_norm()


def optimal_variance(W: EdgeWeights, block_size: BlockSize) -> float:
    r"""The least variance of a law on T_s with weights $1/(W p_T)$ (Lemma 3.2).

    $\frac{2}{W^2}\left(\sum_T \sqrt{\sum_{e\in T} w_e^2}\right)^2 - \|\Omega\|_F^2$, for small d.

    Example:
        >>> W = EdgeWeights.of(torch.tensor([[0., 5, 1, 0], [-5, 0, 0, 1], [-1, 0, 0, 2],
        ...                                  [0, -1, -2, 0]]))
        >>> round(optimal_variance(W, 2), 3)
        30.463
    """
    ways = num_partitions_with_edge(W.d, block_size)
    Z = sum(partition_norm(W, T) for T in enumerate_partitions(W.d, block_size))
    return 2 * (Z / ways) ** 2 - W.squared_norm()


def family_optimal_variance(W: EdgeWeights, family: Family) -> float:
    r"""The least variance on a non-intersecting family: Lemma 3.2 with M = J.

    $2\left(\sum_T \sqrt{\sum_{e\in T} w_e^2}\right)^2 - \|\Omega\|_F^2$,
    in $O(d^2)$ given $\Omega$.

    Example:
        >>> from skewflow.tournaments import round_robin
        >>> W = EdgeWeights.of(torch.tensor([[0., 5, 1, 0], [-5, 0, 0, 1], [-1, 0, 0, 2],
        ...                                  [0, -1, -2, 0]]))
        >>> round(family_optimal_variance(W, round_robin(4)), 3)
        30.463
    """
    return 2 * family_sums(W, family, "square").sqrt().sum().item() ** 2 - W.squared_norm()


def family_h_variance(W: EdgeWeights, family: Family, h: H = "abs") -> float:
    r"""The variance on a non-intersecting family with $p_T \propto h(G_T)$ (Lemma 9.7, corrected).

    $2K\sum_e w_e^2 / K(e) - \|\Omega\|_F^2$, where K(e) is h(G_T) of the member that holds e and K
    is the sum of h over all edges. The paper omits the factor 2.

    Example:
        >>> from skewflow.tournaments import round_robin
        >>> W = EdgeWeights.of(torch.tensor([[0., 5, 1, 0], [-5, 0, 0, 1], [-1, 0, 0, 2],
        ...                                  [0, -1, -2, 0]]))
        >>> round(family_h_variance(W, round_robin(4)), 3)
        30.571
    """
    K_T = family_sums(W, family, h)
    squares = family_sums(W, family, "square")
    ratio = torch.where(K_T > 0, squares / K_T, torch.zeros_like(K_T))
    return 2 * K_T.sum().item() * ratio.sum().item() - W.squared_norm()


def sweep_variance(W: EdgeWeights, num_classes: int, m: int, *, replacement: bool) -> float:
    r"""The variance of the mean of m uniform members of a family of n (not in the paper).

    The family is non-intersecting. With replacement the variance is
    $\frac{n-1}{m}\|\Omega\|_F^2$. Without replacement it is $(\frac nm - 1)\|\Omega\|_F^2$, which
    is zero for a full sweep m = n.

    Example:
        >>> W = EdgeWeights.of(torch.tensor([[0., 5, 1, 0], [-5, 0, 0, 1], [-1, 0, 0, 2],
        ...                                  [0, -1, -2, 0]]))
        >>> [sweep_variance(W, 3, 2, replacement=again) for again in (True, False)]
        [62.0, 31.0]
    """
    n = num_classes
    if not 1 <= m <= n:
        raise ValueError(f"`m` must lie between 1 and the number of classes {n}: got {m}.")
    factor = (n - 1) / m if replacement else n / m - 1
    return factor * W.squared_norm()


def horvitz_thompson_variance(W: EdgeWeights, inclusion: Float[Tensor, "d d"]) -> float:
    r"""The variance $2\sum_{i<j} w_{ij}^2 (1/\pi_{ij} - 1)$ of weights $1/\pi$ (not in the paper).

    Example:
        >>> W = EdgeWeights.of(torch.tensor([[0., 5, 1, 0], [-5, 0, 0, 1], [-1, 0, 0, 2],
        ...                                  [0, -1, -2, 0]]))
        >>> horvitz_thompson_variance(W, torch.full((4, 4), 0.25))
        186.0
    """
    squares = W.dense().to(torch.float64).square()
    return torch.where(squares > 0, squares * (1 / inclusion - 1), squares).sum().item()
