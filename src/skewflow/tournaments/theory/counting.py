r"""Exact counts in T_s: its size N and the number W of members that hold an edge (Lemma 3.5).

All results are integers or fractions without rounding.
"""

from fractions import Fraction
from math import factorial

from ..partitions import BlockSize, block_sizes, edge_probability


def num_partitions(d: int, block_size: BlockSize) -> int:
    r"""$N = |T_s| = d! / ((s!)^{d/s} (d/s)!)$, the number of partitions (Lemma 9.3).

    For unequal sizes it is $d! / \prod_s (s!)^{c_s} c_s!$ (not in the paper).

    Example:
        >>> num_partitions(6, 2), num_partitions(9, 3), num_partitions(7, 3)
        (15, 280, 105)
    """
    ways = factorial(d)
    for size, count in block_sizes(d, block_size):
        ways //= factorial(size) ** count * factorial(count)
    return ways


def num_partitions_with_edge(d: int, block_size: BlockSize) -> int:
    r"""W, the number of partitions that hold a given edge; the same for every edge (Lemma 3.5).

    $W = N P(e)$, which for s | d is $(d-2)! / ((s-2)! (s!)^{(d-s)/s} ((d-s)/s)!)$.

    Example:
        >>> num_partitions_with_edge(6, 2), num_partitions_with_edge(9, 3)
        (3, 70)
    """
    return int(num_partitions(d, block_size) * edge_probability(d, block_size))


def joint_edge_probabilities(d: int, block_size: BlockSize) -> tuple[Fraction, Fraction]:
    r"""$P(f \in T \mid e \in T)$ for an edge f that shares a row with e, and for one that does not.

    T is uniform on T_s (not in the paper). For s | d the two are $(s-2)/(d-2)$ and
    $(m-1-2(s-2)) / \binom{d-2}{2}$. If no such f exists (d = 2, d = 3) the value is 0.

    Example:
        >>> joint_edge_probabilities(6, 2)
        (Fraction(0, 1), Fraction(1, 3))
    """
    sizes = block_sizes(d, block_size)
    pair = sum(n * s * (s - 1) for s, n in sizes)
    triple = sum(n * s * (s - 1) * (s - 2) for s, n in sizes)
    quad_within = sum(n * s * (s - 1) * (s - 2) * (s - 3) for s, n in sizes)
    quad_across = pair**2 - sum(n * (s * (s - 1)) ** 2 for s, n in sizes)
    adjacent = Fraction(triple, pair * (d - 2)) if d > 2 else Fraction(0)
    disjoint = (
        Fraction(quad_within + quad_across, pair * (d - 2) * (d - 3)) if d > 3 else Fraction(0)
    )
    return adjacent, disjoint
