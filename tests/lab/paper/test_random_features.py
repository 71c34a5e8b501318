"""The experiment on random features: its errors, its tests and its verdict."""

import math

import pytest
import torch

from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.paper.random_features import LEVEL, _drawn, _errors, _least_p, _mixed

EXPERIMENT = EXPERIMENTS["random-features"]


def test_the_error_of_gaussian_directions_is_that_of_its_formula(generator):
    n, d, gamma = 4000, 8, 0.5
    x, y = torch.rand(2, 5, d, generator=generator, dtype=torch.float64)
    z = 2 * gamma * (x - y).square().sum(1)  # variances of the angles
    variance = ((1 - (-z).exp()) ** 2 / 2 / d).mean()  # of a mean of d cosines
    found = _errors(_drawn("gaussian", gamma, n, d, 0), x, y, gamma, generator)
    assert abs(found["rmse"] - variance.sqrt()) < 4 * found["error"]
    phases = variance + 1 / (2 * d)  # the cosine of a uniform angle has variance 1/2
    assert found["phased"] == pytest.approx(phases.sqrt().item(), rel=0.05)


def test_a_test_finds_a_difference_of_many_standard_errors_only():
    row = {"means": [1.0, 2.0], "errors": [0.3, 0.3]}
    assert _least_p(row, row) == 1
    other = {"means": [1.0, 2.0 + 1.96 * math.hypot(0.3, 0.4)], "errors": [0.4, 0.4]}
    assert _least_p(row, other) == pytest.approx(0.05, rel=1e-3)


def test_products_count_as_haar_only_if_no_later_test_tells_them_apart():
    rows = [{"rotations": n, "p": p} for n, p in enumerate((0.0, 1.0, LEVEL / 2, 0.5, 1.0))]
    assert _mixed(rows) == 3
    rows[-1]["p"] = 0.0
    assert _mixed(rows) is None


def test_the_verdict_follows_the_numbers():
    step = {"a_step": 32, "mixed": 256, "rows": []}
    results = {
        "num_samples": 10,
        "pairs": 3,
        "num_rotations": 512,
        "exact": {
            "haar": {"rmse": 0.05, "error": 0.001},
            "gaussian": {"rmse": 0.1, "error": 0.001},
        },
        "steps": {"single": {**step, "a_step": 1, "mixed": None}, "s=2": step},
    }
    text = EXPERIMENT.verdict(results)
    assert "is smaller by 50%" in text and "matchings after 256 rotations (8 steps)" in text
    assert "single rotations after more than 512 rotations" in text
    results["exact"]["haar"] = {"rmse": 0.1, "error": 0.01}
    assert "no different" in EXPERIMENT.verdict(results)
