"""The experiments: each runs, is the same when it runs again, and says what its numbers say."""

import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
import torch
from rich.console import Console

from skewflow.geometry import haar
from skewflow.tournaments import EdgeWeights
from skewflow_lab.data import load_images
from skewflow_lab.measure.flops import FlopCounter, flops
from skewflow_lab.measure.products import RoundedProducts, rounded
from skewflow_lab.models.methods import r_star
from skewflow_lab.models.mlp import OrthogonalMLP, Training
from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.paper.haar.experiment import _mixed
from skewflow_lab.paper.numerics import _exponential, _skew, eigen, pade
from skewflow_lab.paper.table1.experiment import SETTINGS
from skewflow_lab.paper.table1.operations import ABS, DRAWS, UNIFORM, count_all
from skewflow_lab.paper.variance.experiment import CASES, _second_moment
from skewflow_lab.report.page import build
from skewflow_lab.runs.reproduce import execute
from skewflow_lab.runs.run import Run

SMALL = {
    "numerics": {"d": 8, "block_sizes": (2, 4), "norms": (1.0, 60.0), "seeds": (0,)},
    "variance": {"sizes": (8,), "draws": 5, "train_steps": 2, "timed_draws": 1, "data": "digits"},
    "table1": {"settings": ("MNIST",), "rounds": 1},
    "table2": {"d": 6, "num_sequences": 2, "step_sizes": (0.01, 0.1), "ranges": (10, 10_000)},
    "haar": {"d": 6, "block_sizes": (2, 3), "num_rotations": 30, "num_samples": 200},
    "convergence": {"sizes": (4, 5), "num_steps": 80, "num_runs": 5},
    "cifar": {
        "depth": 5,
        "width": 2,
        "batch": 32,
        "epochs": 3,
        "images": 100,
        "data": "digits",
        "methods": ("vanilla", "adam", "exact", "s=2", "taylor20"),
        "unshifted": ("s=2",),
        "series_depth": 8,
        "series_steps": 2,
        "test_images": 50,
        "lrs": (0.1,),
        "adam_lrs": (0.01,),
        "scales": (1.0,),
    },
    "mnist": {"width": 10, "epochs": 2, "num_images": 300, "data": "digits"},
    "rl": {
        "hidden": (8,),
        "generations": 2,
        "num_directions": 2,
        "horizon": 20,
        "trials": 2,
        "score_every": 1,
        "num_scores": 2,
        "final_scores": 2,
        "rho_every": 1,
        "update_sizes": (8,),
        "workers": 1,
    },
    "isomorphism": {"pairs": 2, "size": 8},
    "qaplib": {"instances": ("planted8",), "restarts": 3, "moves": 50, "data": "planted"},
    "metric-learning": {"sets": ("wine",), "splits": 2, "steps": 5},
    "random-features": {"num_rotations": 96, "num_samples": 40, "pairs": 3, "block_sizes": (2, 4)},
    "max-cut": {"graphs": ("grid-4", "random-20"), "drawn": ("random-20",)},
    "synchronize": {"graphs": ("sphere-4",), "drawn": ("sphere-4",)},
    "rho": {"d": 20, "block_sizes": (2, 5), "num_steps": 12, "every": 3, "data": "digits"},
    "vae": {
        "latent": 4,
        "hidden": 8,
        "rank": 2,
        "num_flows": 1,
        "epochs": 2,
        "num_images": 200,
        "importance": (3, 2),
        "data": "digits",
        "seeds": (0, 1),
    },
    "ode": {
        "hidden": 4,
        "num_steps": 3,
        "iterations": 4,
        "pixel_iterations": 2,
        "rates": (1e-2, 3e-2),
        "depths": (1, 5),
        "memory_steps": (2, 5),
        "pool": 4,
        "seeds": (0, 1),
    },
    "rnn": {
        "delays": (3,),
        "iterations": 50,
        "epochs": 2,
        "copy_hidden": 8,
        "pixel_hidden": 8,
        "batch": 300,
        "methods": ("FlowSGD", "FlowAdam", "fixed", "LSTM"),
    },
}
"""The quick preset of each experiment, made smaller still."""

INSTALLED = [name for name in sorted(EXPERIMENTS) if EXPERIMENTS[name].missing() is None]
"""Those whose packages are there."""


def small(name):
    experiment = EXPERIMENTS[name]
    return experiment, replace(experiment.presets["quick"], **SMALL[name])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    for name in INSTALLED:
        execute(*small(name), out=out, console=Console(quiet=True))
    return out


def summary(runs, name):
    return json.loads((runs / name / "summary.json").read_text())


def test_every_experiment_is_tested():
    assert set(SMALL) == set(EXPERIMENTS)


STOPPED = [
    ("rho", 5),
    ("cifar", 1),
    ("cifar", 2),
    ("rnn", 5),
    ("rnn", 19),
    ("vae", 9),
    ("vae", 11),
    ("ode", 7),
    ("ode", 30),
]
"""Trainings that are stopped after so many saved states, and go on."""


ONCE_MORE = {*INSTALLED} - {name for name, _ in STOPPED} - {"rl"}  # which test_rl.py runs again


@pytest.mark.parametrize("name", sorted(ONCE_MORE))
def test_an_experiment_gives_the_same_summary_again(runs, tmp_path, name):
    folder = execute(*small(name), out=tmp_path, console=Console(quiet=True))
    assert (folder / "summary.json").read_bytes() == (runs / name / "summary.json").read_bytes()


@pytest.mark.parametrize("name", INSTALLED)
def test_tables_are_rectangular_and_figures_are_written(runs, name):
    results = summary(runs, name)["results"]
    for table in EXPERIMENTS[name].tables(results, {}):  # clock times may be missing
        assert table.rows or "illiseconds" in table.caption
        assert {len(row) for row in table.rows} <= {len(table.columns)}
    assert list((runs / name / "figures").glob("*.svg"))


def test_the_report_shows_every_experiment(runs):
    page = build(runs)
    for name in INSTALLED:
        experiment = EXPERIMENTS[name]
        assert experiment.title in page and summary(runs, name)["command"] in page


@pytest.mark.parametrize("name, stop_at", STOPPED)
def test_a_training_that_was_stopped_goes_on_to_the_same_summary(
    name, stop_at, runs, tmp_path, monkeypatch
):
    experiment, config = small(name)
    save, calls = Run.save, 0

    def stop(run, cell, state):
        nonlocal calls
        calls += 1
        save(run, cell, state)
        if calls == stop_at:
            raise KeyboardInterrupt

    monkeypatch.setattr("skewflow_lab.runs.run.Run.save", stop)
    with pytest.raises(KeyboardInterrupt):
        execute(experiment, config, out=tmp_path, console=Console(quiet=True))
    folder = execute(experiment, config, out=tmp_path, resume=True, console=Console(quiet=True))
    for file in ("summary.json", "metrics.jsonl"):
        assert (folder / file).read_bytes() == (runs / name / file).read_bytes()


def test_the_unscaled_series_fails_where_the_scaled_one_does_not(runs):
    curves = summary(runs, "numerics")["results"]["curves"]
    useful = {(c["method"], c["precision"]): c["useful_to"] for c in curves}
    assert useful["Taylor T = 200", "float64"] == 1.0
    assert useful["scaled Taylor (ours)", "float32"] == 60.0


def test_the_reference_exponential_is_right():
    A = _skew(12, 30.0, seed=3)
    expected = scipy.linalg.expm(A.double().numpy())
    for R in (_exponential(A), pade(A.double()), eigen(A.double())):
        assert np.abs(R.numpy() - expected).max() < 1e-12


def test_the_verdict_of_rho_follows_the_numbers(runs):
    results = summary(runs, "rho")["results"]
    rho = EXPERIMENTS["rho"]
    assert "hardly changes" in rho.verdict(results)
    results["sizes"][0]["largest"] = 100 * results["sizes"][0]["least"]
    assert "hardly changes" not in rho.verdict(results)


def test_the_verdict_of_table1_names_a_broken_bound(runs):
    results = summary(runs, "table1")["results"]
    table1 = EXPERIMENTS["table1"]
    results["counts"]["MNIST"]["stochastic s = r*"]["distinct"] = 1
    assert "all hold" in table1.verdict(results)
    results["counts"]["MNIST"][UNIFORM]["distinct"] = 100_000
    assert "MNIST stochastic s = 2, uniform (10, printed < 8.5)" in table1.verdict(results)
    results["counts"]["ES-200"] = results["counts"]["MNIST"]
    assert "ES-200 stochastic s = 2, uniform" not in table1.verdict(results)
    results["counts"]["MNIST"][ABS]["distinct"] = 690_000
    assert "ES-200 stochastic s = 2, h = |x| (69, printed < 68)" in table1.verdict(results)


def test_table1_says_by_the_clock_whether_weighted_matchings_beat_the_exact_step(runs):
    table1, results = EXPERIMENTS["table1"], summary(runs, "table1")["results"]
    name = f"exact, FlowSGD over {ABS}"
    for factor, claim in (
        (7.3, "by these factors: MNIST 7.3."),
        (0.5, "It is slower by: MNIST 2."),
    ):
        clock = table1.tables(results, {"MNIST": {name: factor}})[2]
        assert claim in clock.caption


def test_the_verdict_of_table2_follows_the_numbers(runs):
    results = summary(runs, "table2")["results"]
    table2 = EXPERIMENTS["table2"]
    assert "stayed finite in all 4 settings" in table2.verdict(results)
    assert "breaks down at R = 10,000 from eta = 0.01;" in table2.verdict(results)
    for row in results["groups"][0]["rows"]:  # R = 10 plays the paper's exact row
        row["methods"]["exact"].update(inv=0.0, epsilon=None, diverged=2)
        row["methods"]["taylor100"].update(inv=1.0, diverged=0)
    for row in results["groups"][1]["rows"]:
        for result in row["methods"].values():
            result.update(inv=1.0, diverged=0)
    text = table2.verdict(results)
    assert "exact row by exact at R = 10 (inv differs by 0.00" in text
    assert "left the floating-point numbers in 2 of 4" in text and "never broke down" in text


def test_table2_shows_the_printed_values_beside_ours(runs):
    inv, epsilon, _ = EXPERIMENTS["table2"].tables(summary(runs, "table2")["results"], {})
    assert inv.rows[0][:3] == (10, 0.01, 0.67) and inv.rows[1][2] == 0.59
    assert [row[4] for row in epsilon.rows] == ["nan"] * 4
    assert epsilon.rows[-1][-1] == "nan" and inv.rows[-1][-1] == 0.0


def test_the_verdict_of_haar_follows_the_numbers(runs):
    results = summary(runs, "haar")["results"]
    haar = EXPERIMENTS["haar"]
    for step, mixed in (("single", [5, 9, 7, 6]), ("s=2", [3, 6, 6, 3]), ("s=3", [6, 6, 6, 6])):
        results["steps"][step]["mixed"] = mixed
    text = haar.verdict(results)
    assert "9 with single rotations, 6 with matchings, 6 with s = 3. Matchings need fewer" in text
    results["steps"]["s=2"]["mixed"][0] = 10
    assert "Matchings need no fewer" in haar.verdict(results)
    results["steps"]["s=3"]["mixed"][1] = None
    assert "more than were made with s = 3" in haar.verdict(results)


def test_a_distance_counts_as_noise_only_if_it_stays_there():
    rows = [
        {"rotations": n, "distances": [distance], "errors": [1.0]}
        for n, distance in enumerate((9.0, 1.0, 5.0, 3.0, 0.0))
    ]
    assert _mixed(rows, 0) == 3
    rows[-1]["distances"] = [4.1]
    assert _mixed(rows, 0) is None


def test_the_bound_of_a_part_of_the_run_is_the_theorem_for_as_many_steps(runs):
    size = summary(runs, "convergence")["results"]["sizes"][0]
    first, *_, last = size["rows"]
    eta, T = size["eta"], last["steps"]
    # bound(t) = a / (t eta) + b eta; two of them give a and b, which the step size balances.
    a = (first["bound"] - last["bound"]) * eta / (1 / first["steps"] - 1 / T)
    b = last["bound"] / eta - a / (T * eta**2)
    for row in size["rows"]:
        t = row["steps"]
        assert row["bound"] == pytest.approx(a / (t * eta) + b * eta)
    assert eta == pytest.approx((a / (b * T)) ** 0.5)


def test_the_verdict_of_convergence_follows_the_numbers(runs):
    results = summary(runs, "convergence")["results"]
    convergence = EXPERIMENTS["convergence"]
    assert "holds at every step" in convergence.verdict(results)
    results["sizes"][1]["holds"] = False
    results["sizes"][0]["trivial"] = 0.0
    text = convergence.verdict(results)
    assert "is broken at d = 5" in text and "says nothing at d = 4" in text


def test_variance_is_uniform_where_the_lemmas_say_so(runs):
    groups = summary(runs, "variance")["results"]["groups"]
    for group in groups:
        ratios = {name: row["ratio"] for name, row in group["rows"].items()}
        assert ratios["square"] == pytest.approx((group["d"] - 1) / (group["s"] - 1))
        assert group["rows"]["optimal"]["how"] == (
            "enumeration" if group["d"] == 8 else "Monte Carlo"
        )
        if group["d"] == 8:  # exact: these inequalities are theorems
            assert ratios["abs HT"] <= ratios["abs"] * (1 + 1e-9)
            assert ratios["optimal"] <= min(ratios["abs"], ratios["uniform"]) * (1 + 1e-9)


def test_the_verdict_of_variance_follows_the_numbers(runs):
    results = summary(runs, "variance")["results"]
    variance = EXPERIMENTS["variance"]
    for group in results["groups"]:
        group["rows"]["abs"]["ratio"] = group["rows"]["uniform"]["ratio"] / 1000
    assert variance.verdict(results).count("99.9% by abs, at most 99.9%, by abs") == 5


def test_a_monte_carlo_moment_agrees_with_its_formula(generator):
    X = haar(10, generator=generator, dtype=torch.float64)  # too large to enumerate
    W = EdgeWeights(X, torch.randn(10, 10, generator=generator, dtype=X.dtype))
    for name in ("abs HT", "uniform", "heavy matchings"):
        case = CASES[name]
        exact = _second_moment(case, W, 2, 0, generator)
        drawn = _second_moment(replace(case, variance=None), W, 2, 400, generator)
        assert exact["how"] == "formula"
        assert abs(exact["ratio"] - drawn["ratio"]) < 4 * drawn["error"] + 1e-9


def test_the_plain_net_has_109_kernels():
    assert sum(count for _, _, count in SETTINGS["CIFAR"]) == 109
    assert [r_star(d) for d in (100, 200)] == [22, 38]


def test_the_paper_s_bounds_on_matchings_hold_for_weighted_ones_too(generator):
    for d, bound in ((200, 68e4), (400, 272e4)):
        X = haar(d, generator=generator, dtype=torch.float32)
        counts = count_all(X, torch.randn(d, d, generator=generator), 1e-3, generator)
        assert sum(counts[ABS].values()) < bound < sum(counts["projection p = 20"].values())


def test_operations_agree_with_a_count_by_hand(generator):
    d = 30
    X = haar(d, generator=generator, dtype=torch.float32)
    counts = count_all(X, torch.randn(d, d, generator=generator), 1e-3, generator)
    pairs = counts[UNIFORM]
    # d/2 pairs: 2 products of rows; a scaled angle; 4 multiplications and 2 additions a column.
    assert pairs["entries"] == d // 2 * (4 * d + 1)
    assert pairs["update"] == d // 2 * (6 * d + 2)
    # h = |x|: 2 * 128 samples, on average 200 trials, each with the products and a sum.
    read = (counts[ABS]["entries"] - d // 2) / (4 * d + 1)
    assert abs(read - (2 * 128 + 200 + d // 2)) < 5 * 200 / DRAWS**0.5
    assert counts[ABS]["update"] == pairs["update"]
    # r* = 9 rows: two blocks of 8 and two of 7, with one product, a difference and a scale each.
    blocks = counts["stochastic s = r*"]
    assert blocks["entries"] == sum(2 * (2 * s * s * d + 2 * s * s) for s in (8, 7))
    assert counts["exact"]["update"] == 2 * d**3
    assert counts["projection p = 10"]["map"] == (14 + 8 + 2) * d**3 // 10


def test_the_counter_counts_by_its_convention_and_refuses_the_rest():
    A = torch.ones(3, 4)
    assert flops(lambda: A @ A.mT) == 2 * 3 * 4 * 3
    assert flops(lambda: A[None] @ A.mT[None]) == 2 * 3 * 4 * 3
    assert flops(lambda: A.add(A, alpha=2)) == 24
    assert flops(lambda: A.sum()) == 12
    assert flops(lambda: A.clone().abs().mT) == 0
    assert flops(lambda: torch.arange(4) * 2) == 0
    with FlopCounter(), pytest.raises(NotImplementedError, match="no rule for counting 'erf'"):
        A.erf()


def test_products_are_rounded_to_the_precision_of_their_unit(generator):
    A = torch.randn(20, 20, generator=generator)
    with RoundedProducts("bf16"):
        B = A @ A
    rough = A.bfloat16().float()
    assert torch.equal(B, rough @ rough)
    assert torch.equal(rounded(A, 7), rough)
    with RoundedProducts("tf32"):
        assert 1e-5 < (A @ A - A.double() @ A.double()).abs().max() < 1e-1
        assert torch.equal(A.double() @ A.double(), A.double() @ A.double())


def test_training_keeps_the_layer_orthogonal_and_learns():
    images = load_images("digits")
    model = OrthogonalMLP(64, 20, seed=0)
    training = Training(model, images, lr=1e-2, batch=64, seed=0, block_size=2)
    losses = []
    training.run(150, lambda step, loss: losses.append(loss))
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])
    W = model.W.detach()
    assert torch.allclose(W.mT @ W, torch.eye(20), atol=1e-5)
