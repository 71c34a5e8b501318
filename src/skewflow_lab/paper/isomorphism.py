"""Graph isomorphism on 200 pairs whose answer is known or checked."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skewflow.problems import graph_isomorphism

from ..runs.experiment import Experiment, Figure, Table, Timing
from ..runs.run import Run
from ..runs.seeds import spawn
from ..runs.threads import one_thread

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

Graph = NDArray[np.int64]
ANSWERS = ("yes", "no", "undecided")


@dataclass(frozen=True, kw_only=True)
class IsomorphismConfig:
    """Pairs of graphs."""

    pairs: int = 20
    """Pairs of each kind; in every second one the second graph is a renamed copy."""
    size: int = 30
    """Vertices of random regular graphs and of sparse ones."""
    seed: int = 0
    """Seed of the graphs and of their names."""


class Isomorphism(Experiment[IsomorphismConfig]):
    """One cell for each kind of graph."""

    name = "isomorphism"
    title = "Graph isomorphism: yes with a permutation, no with an invariant"
    paper = (
        "The paper names assignment among the problems of orthogonal optimisation (Sec. 1), and "
        "gives no numbers."
    )
    presets: Mapping[str, IsomorphismConfig] = {
        "ci": IsomorphismConfig(pairs=2, size=12),
        "quick": IsomorphismConfig(pairs=4, size=16),
        "paper": IsomorphismConfig(),
    }

    def cells(self, config: IsomorphismConfig) -> Sequence[str]:
        """The kinds of graphs."""
        return list(KINDS)

    @one_thread()
    def run_cell(self, config: IsomorphismConfig, cell: str, run: Run) -> dict[str, Any]:
        """Compare the pairs; check every yes by its permutation."""
        rng = np.random.default_rng(spawn(config.seed, cell).initial_seed() % 2**31)
        rows = []
        for number in range(config.pairs):
            A, other, differ = KINDS[cell](config.size, rng)
            copy = number % 2 == 0
            names = rng.permutation(len(A))
            B = (A if copy else other)[np.ix_(names, names)]
            answer = graph_isomorphism(A, B, seed=number)
            p = answer.permutation
            proven = p is not None and _maps(A, B, p)
            said = {True: "yes", False: "no", None: "undecided"}[answer.isomorphic]
            truth = "yes" if copy else "no" if differ or not _same(A, B) else "yes"
            wrong = (said == "yes" and not proven) or {said, truth} == {"yes", "no"}
            rows.append({"said": said, "truth": truth, "wrong": wrong, "why": answer.reason})
            run.progress((number + 1) / config.pairs)
        return {"vertices": len(A), "rows": rows}

    def summarise(self, config: IsomorphismConfig, cells: Mapping[str, Any]) -> dict[str, Any]:
        """The answers of each kind."""
        kinds = []
        for name, cell in cells.items():
            said = Counter(row["said"] for row in cell["rows"])
            kinds.append(
                {
                    "kind": name,
                    "vertices": cell["vertices"],
                    "pairs": len(cell["rows"]),
                    "isomorphic": sum(row["truth"] == "yes" for row in cell["rows"]),
                    "wrong": sum(row["wrong"] for row in cell["rows"]),
                    **{answer: said[answer] for answer in ANSWERS},
                    "reasons": dict(Counter(row["why"] for row in cell["rows"])),
                }
            )
        return {"kinds": kinds}

    def verdict(self, results: Mapping[str, Any]) -> str:
        """The counts."""
        total: Counter[str] = Counter()
        for kind in results["kinds"]:
            total.update({key: kind[key] for key in ("pairs", "wrong", *ANSWERS)})
        return (
            f"Of {total['pairs']} pairs {total['yes']} are called isomorphic, each with a "
            f"permutation that was checked entry by entry, {total['no']} are distinguished by an "
            f"invariant, and {total['undecided']} stay undecided; {total['wrong']} answers are "
            "wrong."
        )

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The tables of the answers by kind, and of their proofs."""
        columns = ("kind", "vertices", "pairs", "isomorphic", *ANSWERS, "wrong")
        reasons: Counter[str] = Counter()
        for kind in results["kinds"]:
            reasons.update(kind["reasons"])
        return [
            Table(
                "answers",
                "Answers by kind. Half of the pairs are a graph and itself with other names; "
                "rustworkx says which random graphs are isomorphic by chance.",
                columns,
                tuple(tuple(kind[c] for c in columns) for kind in results["kinds"]),
            ),
            Table(
                "reasons",
                "What proved the answers.",
                ("reason", "pairs"),
                tuple(reasons.most_common()),
            ),
        ]

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figure of stacked bars of the answers."""

        def draw(canvas: "Canvas") -> None:
            axis = canvas.subplots()
            kinds = results["kinds"]
            left = np.zeros(len(kinds))
            for answer in ANSWERS:
                counts = np.array([kind[answer] for kind in kinds])
                axis.barh([kind["kind"] for kind in kinds], counts, left=left, label=answer)
                left += counts
            axis.invert_yaxis()
            axis.set_xlabel("pairs")
            axis.legend(loc="lower right")

        return [Figure("isomorphism", "Answers by kind of graph.", draw, (7.2, 4.4))]


def _maps(A: Graph, B: Graph, p: NDArray[np.int64]) -> bool:
    """Whether p is a permutation that maps edges to edges, entry by entry."""
    permutation = sorted(p.tolist()) == list(range(len(A)))
    return permutation and all(A[i, j] == B[p[i], p[j]] for i, j in np.ndindex(A.shape))


def _same(A: Graph, B: Graph) -> bool:
    """The answer of another program, which searches exhaustively."""
    import rustworkx

    G, H = (rustworkx.PyGraph.from_adjacency_matrix(M.astype(np.float64)) for M in (A, B))
    return bool(rustworkx.is_isomorphic(G, H))


def _edges(n: int, edges: Any) -> Graph:
    A = np.zeros((n, n), dtype=np.int64)
    for i, j in edges:
        A[i, j] = A[j, i] = 1
    return A


def _random_regular(degree: int) -> Callable[..., tuple[Graph, Graph, bool]]:
    def draw(n: int, rng: np.random.Generator) -> Graph:
        while True:  # until no edge occurs in two of the perfect matchings
            A = np.zeros((n, n), dtype=np.int64)
            for _ in range(degree):
                order = rng.permutation(n - n % 2).reshape(-1, 2)
                A += _edges(n, order)
            if A.max() == 1:
                return A

    return lambda n, rng: (draw(n, rng), draw(n, rng), False)


def _cayley(size: tuple[int, int], steps: set[tuple[int, int]]) -> Graph:
    m, k = size
    places = [(i, j) for i in range(m) for j in range(k)]
    return np.array(
        [[((a - c) % m, (b - d) % k) in steps for c, d in places] for a, b in places],
        dtype=np.int64,
    )


def _rook(n: int, rng: np.random.Generator) -> tuple[Graph, Graph, bool]:
    line = {(0, k) for k in range(1, 4)} | {(k, 0) for k in range(1, 4)}
    diagonal = {(0, 1), (1, 0), (1, 1), (0, 3), (3, 0), (3, 3)}
    return _cayley((4, 4), line), _cayley((4, 4), diagonal), True  # the second is Shrikhande's


def _paley(n: int, rng: np.random.Generator) -> tuple[Graph, Graph, bool]:
    q = 29
    squares = {(x * x % q, 0) for x in range(1, q)}
    A = _cayley((q, 1), squares)
    return A, _switched(A, rng), True


def _latin(n: int, rng: np.random.Generator) -> tuple[Graph, Graph, bool]:
    """Latin square graphs of the groups Z4 and Z2 x Z2: both strongly regular (16, 9, 4, 6)."""

    def graph(product: Callable[[int, int], int]) -> Graph:
        cells = [(i, j, product(i, j)) for i in range(4) for j in range(4)]
        return np.array(
            [
                [a != b and any(x == y for x, y in zip(a, b, strict=True)) for b in cells]
                for a in cells
            ],
            dtype=np.int64,
        )

    return graph(lambda i, j: (i + j) % 4), graph(lambda i, j: i ^ j), True


def _grid(n: int, rng: np.random.Generator) -> tuple[Graph, Graph, bool]:
    """A street grid without some streets, and one without another street."""
    m = max(3, round(n**0.5))
    cells = [(i, j) for i in range(m) for j in range(m)]
    streets = [
        (i * m + j, k * m + h)
        for i, j in cells
        for k, h in ((i + 1, j), (i, j + 1))
        if k < m and h < m
    ]
    keep = rng.permutation(len(streets))[: len(streets) - 3]
    A = _edges(m * m, [streets[e] for e in keep])
    return A, _switched(A, rng), False


def _molecule(n: int, rng: np.random.Generator) -> tuple[Graph, Graph, bool]:
    """A random tree whose degrees are at most four, with a few rings."""

    def draw() -> Graph:
        A = np.zeros((n, n), dtype=np.int64)
        for v in range(1, n):
            u = rng.choice(np.flatnonzero(A[:v].sum(1) < 4)[-6:])
            A[u, v] = A[v, u] = 1
        for _ in range(3):
            u, v = rng.choice(np.flatnonzero(A.sum(1) < 4), 2, replace=False)
            A[u, v] = A[v, u] = 1
        return A

    return draw(), draw(), False


def _switched(A: Graph, rng: np.random.Generator) -> Graph:
    """A graph in which two edges ij and kl become ik and jl, so all degrees stay the same."""
    edges = np.argwhere(A)
    while True:
        (i, j), (k, m) = edges[rng.integers(len(edges), size=2)]
        if len({i, j, k, m}) == 4 and not A[i, k] and not A[j, m]:
            B = A.copy()
            B[i, j] = B[j, i] = B[k, m] = B[m, k] = 0
            B[i, k] = B[k, i] = B[j, m] = B[m, j] = 1
            return B


def _regular_switched(n: int, rng: np.random.Generator) -> tuple[Graph, Graph, bool]:
    A, _, _ = _random_regular(4)(n, rng)
    return A, _switched(A, rng), False


def _rings(n: int, rng: np.random.Generator) -> tuple[Graph, Graph, bool]:
    """One ring and two rings, which colour refinement does not distinguish."""
    half = n // 2
    one = _edges(2 * half, [(v, (v + 1) % (2 * half)) for v in range(2 * half)])
    two = _edges(2 * half, [(h + v, h + (v + 1) % half) for h in (0, half) for v in range(half)])
    return one, two, True


KINDS: dict[str, Callable[[int, np.random.Generator], tuple[Graph, Graph, bool]]] = {
    "random-cubic": _random_regular(3),
    "random-4-regular": _random_regular(4),
    "switched-4-regular": _regular_switched,
    "rook-shrikhande": _rook,
    "latin-squares": _latin,
    "switched-paley-29": _paley,
    "street-grids": _grid,
    "molecules": _molecule,
    "one-or-two-rings": _rings,
    "large-molecules": lambda n, rng: _molecule(2 * n, rng),
}
"""Makers of two graphs, with whether they are certainly not isomorphic, by kind."""
