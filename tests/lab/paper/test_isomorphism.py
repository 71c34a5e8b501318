"""The isomorphism experiment: its graphs, and its verdict."""

import numpy as np
import pytest

from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.paper.isomorphism import KINDS, _same

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

    cells = {"a": {"vertices": 4, "rows": [row("yes", False), row("no", True)]}}
    results = EXPERIMENT.summarise(EXPERIMENT.presets["quick"], cells)
    assert "Of 2 pairs 1 are called isomorphic" in EXPERIMENT.verdict(results)
    assert "1 answers are wrong" in EXPERIMENT.verdict(results)
