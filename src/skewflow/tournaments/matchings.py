"""Families of heavy matchings: remove a heavy matching, then the next one (Sec. 9.7).

Iterated maximum-weight matching is the paper's heuristic. It is not optimal: minimising the
variance over families is NP-hard, and on six rows another family can already be better. The greedy
family is a cheap substitute for large d, and the locally heaviest rule finds it in parallel.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import _validate
from .edge_weights import EdgeWeights
from .families import Family
from .partitions import Partition

METHODS = ("exact", "greedy", "locally-heaviest")
"""The ways to choose the next matching; see `heavy_matchings`."""


def heavy_matchings(W: EdgeWeights, method: str = "greedy") -> Family:
    r"""A family of matchings of the complete graph, heaviest first (Sec. 9.7).

    Every edge is used, also those of weight zero, so the family stays valid (and the estimate
    unbiased) when the weights change before the next refresh. The last matchings may leave rows
    unmatched, and there may be more than d - 1 matchings.

    Args:
        W: The tournament; all of its entries are read.
        method: "exact" takes the heaviest of the remaining matchings with the most edges
            (Edmonds' blossom algorithm in rustworkx, $O(d^3)$ each and $O(d^4)$ in all, so for d
            up to about 100). "greedy" takes the heaviest edge that still fits, which gives at least
            half of the maximum weight, in $O(d^3/64)$ in all. "locally-heaviest" matches all pairs
            of rows that are each other's heaviest free neighbour at once; for distinct weights the
            result equals that of "greedy". It is the rule for parallel machines (Sec. 9.7.2): a
            matching takes few rounds of $O(d^2)$ work, but on one processor the whole family takes
            far longer than "greedy".

    Example:
        >>> W = EdgeWeights.of(torch.tensor([[0., 5, 1, 0], [-5, 0, 0, 1], [-1, 0, 0, 2],
        ...                                  [0, -1, -2, 0]]))
        >>> [sorted(matching) for matching in heavy_matchings(W)]
        [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]]
    """
    _validate.one_of(method, METHODS, "method")
    _validate.block_size(2, W.d)
    weights = W.dense().abs().to("cpu", torch.float64)
    if method == "exact":
        matchings = _exact(weights)
    elif method == "greedy":
        matchings = _greedy(weights)
    else:
        matchings = _locally_heaviest(weights)
    return Family([matching_partition(pairs, W.d) for pairs in matchings])


def matching_partition(pairs: Int[Tensor, "m 2"], d: int) -> Partition:
    """The partition with the given disjoint pairs as blocks; every other row is a block of one."""
    unmatched = torch.ones(d, dtype=torch.bool, device=pairs.device)
    unmatched[pairs.flatten()] = False
    pairs = pairs.sort(dim=-1).values
    if not unmatched.any():
        return Partition((pairs,))
    return Partition((pairs, unmatched.nonzero()))


def greedy_colours(edges: list[tuple[int, int]], d: int) -> list[int]:
    """The number of the matching of each edge, if each edge goes to the first one it fits into.

    For edges in order of decreasing weight this is iterated greedy matching, in one pass.

    Example:
        >>> greedy_colours([(0, 1), (1, 2), (2, 3)], 4)
        [0, 1, 0]
    """
    used = [0] * d  # bit r is set if matching r already has this row
    colours = []
    for i, j in edges:
        free = ~(used[i] | used[j])
        bit = free & -free
        used[i] |= bit
        used[j] |= bit
        colours.append(bit.bit_length() - 1)
    return colours


def _edges_by_weight(weights: Float[Tensor, "d d"]) -> Int[Tensor, "n 2"]:
    """All edges by decreasing weight; equal weights keep the order of the triangle."""
    i, j = torch.triu_indices(len(weights), len(weights), offset=1)
    order = weights[i, j].sort(descending=True, stable=True).indices
    return torch.stack([i, j], dim=-1)[order]


def _greedy(weights: Float[Tensor, "d d"]) -> list[Int[Tensor, "m 2"]]:
    edges = _edges_by_weight(weights)
    colours = torch.tensor(greedy_colours([(i, j) for i, j in edges.tolist()], len(weights)))
    order = colours.sort(stable=True).indices
    return list(torch.split(edges[order], torch.bincount(colours).tolist()))


def _locally_heaviest(weights: Float[Tensor, "d d"]) -> list[Int[Tensor, "m 2"]]:
    d = len(weights)
    edges = _edges_by_weight(weights)
    i, j = edges.unbind(-1)
    # Ranks are distinct, so two rows that are each other's heaviest neighbour always exist.
    rank = torch.zeros(d, d, dtype=torch.int64)
    rank[i, j] = rank[j, i] = torch.arange(len(edges), 0, -1)
    matchings = []
    left = len(edges)
    while left:
        free = rank.clone()
        pairs = []
        while free.any():
            best, mate = free.max(dim=1)
            row = torch.arange(d)
            chosen = (best > 0) & (mate[mate] == row) & (row < mate)
            pairs.append(torch.stack([row[chosen], mate[chosen]], dim=-1))
            taken = pairs[-1].flatten()
            free[taken, :] = 0
            free[:, taken] = 0
        matching = torch.cat(pairs)
        a, b = matching.unbind(-1)
        rank[a, b] = rank[b, a] = 0
        left -= len(matching)
        matchings.append(matching)
    return matchings


def _exact(weights: Float[Tensor, "d d"]) -> list[Int[Tensor, "m 2"]]:
    try:
        import rustworkx
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'method="exact" needs rustworkx: install `skewflow[lab]`, or use method="greedy".'
        ) from error
    # rustworkx needs integer weights; 2**40 steps keep twelve digits of the heaviest.
    scale = 2.0**40 / max(weights.max().item(), 1e-300)
    graph = rustworkx.PyGraph(multigraph=False)
    graph.add_nodes_from(range(len(weights)))
    rows = (weights * scale).round().to(torch.int64).tolist()
    graph.add_edges_from([(i, j, rows[i][j]) for i in range(len(rows)) for j in range(i)])
    matchings = []
    while graph.num_edges():
        pairs = rustworkx.max_weight_matching(graph, max_cardinality=True, weight_fn=int)
        graph.remove_edges_from(list(pairs))
        matchings.append(torch.tensor(sorted(sorted(pair) for pair in pairs)))
    return matchings
