"""The experiment on metric learning: its splits, its tables and its verdict."""

from dataclasses import replace

import numpy as np

from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.paper.metric_learning import _splits

EXPERIMENT = EXPERIMENTS["metric-learning"]
QUICK = EXPERIMENT.presets["quick"]


def cell(ours, nca=(0.1, 0.2, 0.3)):
    errors = {"raw": [0.5] * 3, "pca": [0.4] * 3, "nca": list(nca), "ours": list(ours)}
    shape = {"points": 60_000, "tested": 10, "features": 8, "components": 2}
    return {**shape, "errors": errors}


def test_the_test_sets_of_the_splits_are_a_partition_apart_from_the_training():
    splits = list(_splits(QUICK, "wine", 0))
    assert sum(len(test) for *_, test in splits) == 178
    for X, _, points, classes in splits:
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
    results = EXPERIMENT.summarise(QUICK, {"mnist": cell((0.1, 0.2, 0.3))})
    for ours, word in ((1.0, "less"), (3.0, "more")):
        table = EXPERIMENT.tables(results, {"mnist": {"pca": 0.1, "nca": 2.0, "ours": ours}})[1]
        assert f"MahalanobisMetric takes {word} time" in table.caption
        assert "29 GB" in table.caption
