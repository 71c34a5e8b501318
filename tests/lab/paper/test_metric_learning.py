"""The experiment on metric learning: its splits, its tables and its verdict."""

from dataclasses import replace

import numpy as np
import pytest

from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.paper.metric_learning.rivals import LMNN, UnfinishedError
from skewflow_lab.paper.metric_learning.splits import splits

EXPERIMENT = EXPERIMENTS["metric-learning"]
QUICK = EXPERIMENT.presets["quick"]


def cell(ours, nca=(0.1, 0.2, 0.3)):
    errors = {"raw": [0.5] * 3, "pca": [0.4] * 3, "nca": list(nca), "ours": list(ours)}
    shape = {"points": 60_000, "tested": 10, "features": 8, "components": 2}
    return {**shape, "errors": errors, "embedding": None}


def test_the_test_sets_of_the_splits_are_a_partition_apart_from_the_training():
    found = list(splits("wine", parts=5, repeats=2, scored=0, seed=0))
    assert sum(len(test) for *_, test in found) == 2 * 178
    for X, _, points, classes in found:
        assert len(X) + len(classes) == 178
        assert np.allclose(X.mean(0), 0) and np.allclose(X.std(0), 1)
        assert not (points[:, None] == X).all(2).any(1).all()


def test_the_verdict_compares_with_the_best_rival_by_its_standard_error():
    cells = {"wine": cell((0.2, 0.2, 0.2)), "mnist": cell((0.2, 0.3, 0.4))}
    results = EXPERIMENT.summarise(replace(QUICK, splits=3), cells)
    level, worse = results["sets"]
    assert level["best"] == "nca" and level["level"]  # 0.00 ± 0.06
    assert not worse["level"]  # 0.1 in every split
    text = EXPERIMENT.verdict(results)
    assert "wine 20.00% against 20.00% (NeighborhoodComponentsAnalysis)" in text
    assert "It is worse on mnist by" in text


def test_the_table_of_seconds_says_who_is_faster_on_mnist():
    finished = cell((0.1, 0.2, 0.3))
    finished["errors"]["lmnn"] = [0.5] * 3
    results = EXPERIMENT.summarise(QUICK, {"wine": finished, "mnist": cell((0.1, 0.2, 0.3))})
    for ours, word in ((1.0, "less"), (3.0, "more")):
        table = EXPERIMENT.tables(results, {"mnist": {"pca": 0.1, "nca": 2.0, "ours": ours}})[1]
        assert f"MahalanobisMetric takes {word} time" in table.caption
        assert "29 GB" in table.caption and "LMNN does not finish in 600 s" in table.caption


def test_a_rival_that_does_not_finish_is_left_out():
    lonely = np.zeros((4, 3)), np.arange(4)  # no point has a neighbour of its class
    with pytest.raises(UnfinishedError):
        LMNN(2, seed=0, limit=60).fit(*lonely)
    results = EXPERIMENT.summarise(QUICK, {"wine": cell((0.2, 0.2, 0.2))})
    table = EXPERIMENT.tables(results, {})[0]
    assert dict(zip(table.columns, table.rows[0], strict=True))["LMNN (metric-learn)"] is None
