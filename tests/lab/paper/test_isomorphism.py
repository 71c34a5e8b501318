"""The isomorphism experiment: its graphs, and its verdict."""

import numpy as np
import pytest

from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.paper.isomorphism.experiment import _same
from skewflow_lab.paper.isomorphism.kinds import KINDS
from skewflow_lab.paper.isomorphism.picture import layout

EXPERIMENT = EXPERIMENTS["isomorphism"]


@pytest.mark.parametrize("kind", KINDS)
def test_both_graphs_of_a_pair_are_simple_and_differ_where_it_says_so(kind):
    A, B, differ = KINDS[kind](12, np.random.default_rng(0))
    for M in (A, B):
        assert np.array_equal(M, M.T) and not M.diagonal().any() and set(np.unique(M)) <= {0, 1}
    if differ and kind != "switched-paley-29":  # the search takes minutes
        assert not _same(A, B)
        assert _same(A, A[::-1, ::-1])


def test_the_verdict_counts_the_answers():
    def row(said, wrong):
        return {"said": said, "truth": "yes", "wrong": wrong, "why": "because"}

    cells = {"a": {"vertices": 4, "rows": [row("yes", False), row("no", True)], "picture": None}}
    results = EXPERIMENT.summarise(EXPERIMENT.presets["quick"], cells)
    assert "Of 2 pairs 1 are called isomorphic" in EXPERIMENT.verdict(results)
    assert "1 answers are wrong" in EXPERIMENT.verdict(results)


def test_a_layout_keeps_the_distances_along_a_path():
    n = 8
    X = layout(n, np.stack([np.arange(n - 1), np.arange(1, n)], axis=1))
    apart = np.linalg.norm(X[:, None] - X, axis=2)
    assert np.allclose(apart, abs(np.subtract.outer(range(n), range(n))), rtol=0.02)
