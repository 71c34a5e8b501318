"""Graph isomorphism on 200 pairs whose answer is known or checked."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skewflow.problems import graph_isomorphism

from ...runs.experiment import Experiment, Figure, Table, Timing
from ...runs.run import Run
from ...runs.seeds import spawn
from ...runs.threads import one_thread
from .kinds import KINDS, Graph
from .picture import draw_matches, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

ANSWERS = ("yes", "no", "undecided")


@dataclass(frozen=True, kw_only=True)
class IsomorphismConfig:
    """Pairs of graphs."""

    pairs: int = 20
    """Pairs of each kind; in every second one the second graph is a renamed copy."""
    size: int = 30
    """Vertices of random regular graphs and of sparse ones."""
    drawn: tuple[str, ...] = ("random-cubic", "street-grids", "molecules")
    """Kinds of which a pair is drawn."""
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
        rows, picture = [], None
        for number in range(config.pairs):
            A, other, differ = KINDS[cell](config.size, rng)
            copy = number % 2 == 0
            names = rng.permutation(len(A))
            B = (A if copy else other)[np.ix_(names, names)]
            answer = graph_isomorphism(A, B, seed=number)
            p = answer.permutation
            proven = p is not None and _maps(A, B, p)
            if p is not None and proven and picture is None and cell in config.drawn:
                picture = drawing(A, B, p)
            said = {True: "yes", False: "no", None: "undecided"}[answer.isomorphic]
            truth = "yes" if copy else "no" if differ or not _same(A, B) else "yes"
            wrong = (said == "yes" and not proven) or {said, truth} == {"yes", "no"}
            rows.append({"said": said, "truth": truth, "wrong": wrong, "why": answer.reason})
            run.progress((number + 1) / config.pairs)
        return {"vertices": len(A), "rows": rows, "picture": picture}

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
                    "picture": cell["picture"],
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
        """The figure of the matched graphs."""
        drawn = {k["kind"]: k["picture"] for k in results["kinds"] if k.get("picture")}
        if not drawn:
            return []

        def draw(canvas: "Canvas") -> None:
            draw_matches(canvas, drawn)

        caption = (
            "Two graphs that are the same up to names. Left: the first. Middle: the second, with "
            "its vertices on a circle in the order of their names. Right: the second, with each "
            "vertex at the place of its partner in the first. A pair of partners has one colour."
        )
        return [Figure("isomorphism", caption, draw, (7.2, 2.5 * len(drawn)))]


def _maps(A: Graph, B: Graph, p: NDArray[np.int64]) -> bool:
    """Whether p is a permutation that maps edges to edges, entry by entry."""
    permutation = sorted(p.tolist()) == list(range(len(A)))
    return permutation and all(A[i, j] == B[p[i], p[j]] for i, j in np.ndindex(A.shape))


def _same(A: Graph, B: Graph) -> bool:
    """The answer of another program, which searches exhaustively."""
    import rustworkx

    G, H = (rustworkx.PyGraph.from_adjacency_matrix(M.astype(np.float64)) for M in (A, B))
    return bool(rustworkx.is_isomorphic(G, H))
