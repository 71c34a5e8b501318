"""Graph isomorphism: proven by a permutation, refuted by an invariant, or undecided."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._matrices import limit
from .solve import _square, quadratic_assignment

Colours = NDArray[np.int64]
Adjacency = NDArray[np.int64]

MOST_REFINEMENTS = 5000
"""Refinements of one graph that the last invariant may take: some seconds."""


@dataclass(frozen=True)
class GraphIsomorphism:
    """An answer with its proof (not in the paper)."""

    isomorphic: bool | None
    """True with a permutation, False with an invariant that differs, None if undecided."""
    permutation: NDArray[np.int64] | None
    """Vertex i of the first graph is vertex permutation[i] of the second."""
    reason: str
    """What proves the answer, in words."""


def graph_isomorphism(G: Any, H: Any, *, seed: int = 0, trials: int = 4) -> GraphIsomorphism:
    r"""Whether two graphs are the same up to the names of their vertices.

    A yes is a permutation with $A_{ij} = B_{p_i p_j}$, checked entry by entry. A no is an invariant
    that differs: the number of edges, the degrees, or the colours that refinement gives to both
    graphs at once, also with one or two vertices singled out. Permutations are found by
    `quadratic_assignment`, with diagonals that draw vertices of one colour together. Sec. 1 of
    the paper names assignment, but not this use.

    Args:
        G: An undirected networkx graph, whose weights do not count, or a symmetric matrix of zeros
            and ones with zero diagonal.
        H: Another one.
        seed: Seed of the flows.
        trials: Searches for a permutation before the answer is None.

    Raises:
        ValueError: If a graph is directed, weighted or has loops.

    Example:
        >>> import numpy as np
        >>> path = np.diag([1, 1, 1], 1) + np.diag([1, 1, 1], -1)
        >>> star = np.zeros((4, 4), dtype=int)
        >>> star[0, 1:] = star[1:, 0] = 1
        >>> graph_isomorphism(path, star).reason
        'the degrees of the vertices differ'
    """
    A, B = _adjacency(G, "G"), _adjacency(H, "H")
    limit(seed, "seed")
    limit(trials, "trials")
    if len(A) != len(B):
        return GraphIsomorphism(False, None, "the numbers of vertices differ")
    if A.sum() != B.sum():
        return GraphIsomorphism(False, None, "the numbers of edges differ")
    if Counter(A.sum(0).tolist()) != Counter(B.sum(0).tolist()):
        return GraphIsomorphism(False, None, "the degrees of the vertices differ")
    n = len(A)
    a, b = refine(A, B, np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64))
    if not _same(a, b):
        return GraphIsomorphism(False, None, "the colours after refinement differ")
    perm = _search(A, B, a, b, (), seed)
    if perm is not None:
        return _yes(perm)
    singled = single_out(A, B, a, b)
    if singled is None:
        return GraphIsomorphism(
            False, None, "the colours after refinement with one vertex singled out differ"
        )
    for trial in range(trials):
        perm = _descend(A, B, *singled, np.random.default_rng([seed, trial]))
        if perm is not None:
            return _yes(perm)
    if not has_counterpart(A, B, *singled):
        return GraphIsomorphism(
            False, None, "the colours after refinement with two vertices singled out differ"
        )
    return GraphIsomorphism(None, None, "no permutation was found, and no invariant differs")


def refine(A: Adjacency, B: Adjacency, a: Colours, b: Colours) -> tuple[Colours, Colours]:
    """Colour refinement of both graphs at once (Weisfeiler and Leman 1968).

    Vertices keep one colour while they have as many neighbours of each colour. The new colours are
    the ranks of exact counts, so that equal colours mean the same in both graphs.
    """
    while True:
        _, colours = np.unique(np.concatenate([a, b]), return_inverse=True)
        a, b = colours[: len(a)], colours[len(a) :]
        k = int(colours.max()) + 1
        hot = np.eye(k, dtype=np.int64)
        counts = np.concatenate([A @ hot[a], B @ hot[b]])
        _, new = np.unique(np.column_stack([colours, counts]), axis=0, return_inverse=True)
        new = new.ravel()
        if int(new.max()) + 1 == k:
            return a, b
        a, b = new[: len(a)], new[len(a) :]


def single_out(
    A: Adjacency, B: Adjacency, a: Colours, b: Colours
) -> tuple[Colours, Colours] | None:
    """Colours that say what refinement finds after each vertex is singled out; None if they differ.

    A vertex gets a colour from its own and from the histogram of the colours that follow; then the
    graphs are refined again.
    """
    numbers: dict[Any, int] = {}
    x, y = (
        np.array([numbers.setdefault(_signature(M, c, v), len(numbers)) for v in range(len(M))])
        for M, c in ((A, a), (B, b))
    )
    if not _same(x, y):
        return None
    x, y = refine(A, B, x, y)
    return (x, y) if _same(x, y) else None


def has_counterpart(A: Adjacency, B: Adjacency, a: Colours, b: Colours) -> bool:
    """Whether some vertex of B looks like one of A after any second vertex is singled out, too.

    Also True where the comparison would take more than `MOST_REFINEMENTS`.
    """
    n, sizes = len(A), np.bincount(a)
    colour = int(np.argmin(np.where(sizes > 1, sizes, n + 1)))
    if (sizes[colour] + 1) * n > MOST_REFINEMENTS:
        return True
    v, *_ = np.flatnonzero(a == colour).tolist()
    wanted = _signatures_beside(A, a, v)
    return any(_signatures_beside(B, b, w) == wanted for w in np.flatnonzero(b == colour).tolist())


def _signatures_beside(M: Adjacency, c: Colours, v: int) -> Counter[Any]:
    marked = 2 * c
    marked[v] += 1
    return Counter(_signature(M, marked, u) for u in range(len(M)) if u != v)


def _signature(M: Adjacency, c: Colours, v: int) -> Any:
    """What refinement finds when v is singled out; equal for vertices that an isomorphism maps.

    Colours are ranks of exact counts, so that they depend on the graph and not on its numbering.
    """
    marked = 2 * c
    marked[v] += 1
    fine, _ = refine(M, M, marked, marked)
    return int(c[v]), *_quotient(M, fine)


def _quotient(M: Adjacency, colours: Colours) -> Any:
    """How many vertices each colour has, and how many neighbours of each colour they have."""
    _, first, counts = np.unique(colours, return_index=True, return_counts=True)
    hot = np.eye(int(colours.max()) + 1, dtype=np.int64)[colours]
    return counts.tobytes(), (M[first] @ hot).tobytes()


def _descend(
    A: Adjacency, B: Adjacency, a: Colours, b: Colours, rng: np.random.Generator
) -> NDArray[np.int64] | None:
    """Match one pair of vertices after the other, refine, and let the flow try the rest."""
    pairs: list[tuple[int, int]] = []
    while True:
        sizes = np.bincount(a)
        if sizes.max() == 1:
            return _checked(A, B, np.argsort(b)[np.argsort(np.argsort(a))])
        colour = rng.choice(np.flatnonzero(sizes > 1))
        v, w = rng.choice(np.flatnonzero(a == colour)), rng.choice(np.flatnonzero(b == colour))
        pairs.append((int(v), int(w)))
        a, b = 2 * a, 2 * b
        a[v] += 1
        b[w] += 1
        a, b = refine(A, B, a, b)
        if not _same(a, b):
            return None
        perm = _search(A, B, a, b, pairs, int(rng.integers(2**31)))
        if perm is not None:
            return perm


def _search(
    A: Adjacency,
    B: Adjacency,
    a: Colours,
    b: Colours,
    pairs: Sequence[tuple[int, int]],
    seed: int,
) -> NDArray[np.int64] | None:
    """A permutation by `quadratic_assignment`, which keeps colours by the diagonals."""
    single = np.flatnonzero(np.bincount(a) == 1)
    place = {int(c): int(i) for i, c in enumerate(b)}
    match = {int(v): place[int(a[v])] for v in np.flatnonzero(np.isin(a, single))}
    match.update(pairs)
    n, k = len(A), int(a.max()) + 1
    # sum_i A_ii B_{p_i p_i} is largest where equal colours meet, by the rearrangement inequality.
    centred = (np.arange(k) - (k - 1) / 2) * (n / k)
    options = {
        "maximize": True,
        "rng": seed,
        "partial_match": np.array(sorted(match.items()), dtype=np.int64).reshape(-1, 2),
        "restarts": 8,
        "steps": 100,
        "moves": 20 * n,
    }
    result = quadratic_assignment(A + np.diag(centred[a]), B + np.diag(centred[b]), options=options)
    return _checked(A, B, result.col_ind)


def _checked(A: Adjacency, B: Adjacency, perm: NDArray[np.int64]) -> NDArray[np.int64] | None:
    return perm if np.array_equal(A, B[np.ix_(perm, perm)]) else None


def _yes(perm: NDArray[np.int64]) -> GraphIsomorphism:
    return GraphIsomorphism(True, perm, "the permutation maps edges to edges")


def _same(a: Colours, b: Colours) -> bool:
    return Counter(a.tolist()) == Counter(b.tolist())


def _adjacency(graph: Any, name: str) -> Adjacency:
    if hasattr(graph, "is_directed"):  # networkx
        if graph.is_directed():
            raise ValueError(
                f"`{name}` must be undirected: got a directed graph. Call `to_undirected()` on it."
            )
        import networkx  # type: ignore[import-untyped]

        graph = networkx.to_numpy_array(graph, weight=None)
    A = _square(graph, name)
    if not np.array_equal(A, A.T):
        i, j = np.argwhere(A != A.T)[0]
        raise ValueError(
            f"`{name}` must be symmetric: its entries ({i}, {j}) and ({j}, {i}) are {A[i, j]:g} "
            f"and {A[j, i]:g}. Directed graphs are not supported: ({name} + {name}.T > 0) forgets "
            "the directions."
        )
    if not np.isin(A, (0.0, 1.0)).all():
        bad = A[~np.isin(A, (0.0, 1.0))][0]
        raise ValueError(
            f"`{name}` must have entries 0 and 1: got {bad:g}. Weighted graphs are not supported."
        )
    if A.diagonal().any():
        vertex = np.flatnonzero(A.diagonal())[0]
        raise ValueError(
            f"`{name}` must have no loops: vertex {vertex} has one. Set the diagonal to zero."
        )
    return A.astype(np.int64)
