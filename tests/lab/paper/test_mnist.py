"""Training on MNIST: what is compared with what, and what the verdict says of it."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from torch import nn

from skewflow_lab.models.methods import largest_error
from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.paper.mnist import experiment as mnist
from skewflow_lab.paper.mnist.training import (
    Split,
    Training,
    load_split,
    make_network,
    optimizers_of,
)
from skewflow_lab.runs.files import RunError
from skewflow_lab.runs.reproduce import execute

MNIST = EXPERIMENTS["mnist"]
SMALL = {"width": 8, "epochs": 2, "num_images": 200, "data": "digits"}


@pytest.fixture
def split():
    return load_split("digits", "test", 300, "cpu")


def training(split, method, **options):
    if method == "geoopt":
        pytest.importorskip("geoopt")
    settings = {"width": 20, "layers": "both", "lr": 0.1, "scale": 0.1, "batch": 50, "epochs": 9}
    return Training(split, method, seed=3, **{**settings, **options})


@pytest.mark.parametrize("layers", ["both", "second"])
@pytest.mark.parametrize("method", mnist.METHODS)
def test_every_method_starts_at_the_same_weights_and_orthogonal_ones_stay_orthogonal(
    method, layers, split
):
    run = training(split, method, layers=layers)
    start = make_network(64, 20, "both", seed=3)
    assert largest_error(start) < 1e-6
    same = zip(run.model.parameters(), start.parameters(), strict=True)
    assert all(torch.equal(p, q) for p, q in same) == (method != "default")
    losses = [run.epoch()["loss"] for _ in range(9)]
    assert losses[-1] < 0.7 * losses[0]
    free = method in ("vanilla", "default")
    assert (largest_error(run.model) < 1e-5) != free
    gram = run.model[0].weight.mT @ run.model[0].weight if layers == "both" else None
    assert free or gram is None or (gram @ gram - gram).abs().max() < 1e-4
    held = {id(p) for p in run.model.parameters()}
    moved = [
        id(p)
        for o in run.optimizers
        for p in getattr(o, "weights", [q for g in o.param_groups for q in g["params"]])
    ]
    assert sorted(moved) == sorted(held)


def test_the_default_start_is_that_of_torch(split):
    model = training(split, "default", width=200).model
    for layer, theirs in zip(model[::2], (nn.Linear(64, 200), nn.Linear(200, 200)), strict=False):
        bound = layer.in_features**-0.5
        for p, q in zip(layer.parameters(), theirs.parameters(), strict=True):
            assert 0.95 * bound < p.abs().max() <= bound
            assert p.std().item() == pytest.approx(q.std().item(), rel=0.2)
    again = training(split, "default", width=200).model
    assert all(map(torch.equal, model.parameters(), again.parameters()))


def test_the_recorded_search_reaches_a_hundredth_and_ends_with_the_last_drop_of_the_rates():
    paper = MNIST.presets["paper"]
    assert min(paper.scales) == 0.01 and set(paper.scales) > {0.1, 1.0, 10.0}
    assert paper.search_epochs == 9 and len(paper.seeds) == 5
    assert [c for c in MNIST.cells(paper) if c.startswith("default,")] == [
        f"default,seed={seed}" for seed in range(5)
    ]


@pytest.mark.parametrize("method", mnist.METHODS)
def test_a_training_goes_on_to_the_same_bits(method, split):
    whole, first, second = (training(split, method) for _ in range(3))
    for _ in range(5):
        whole.epoch()
    first.epoch()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    while len(second.rows) < 5:
        second.epoch()
    assert second.rows == whole.rows
    for p, q in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_the_hidden_weights_of_vanilla_learn_at_their_own_rate():
    model = make_network(64, 20, "both", seed=0)
    (sgd,) = optimizers_of(model, "vanilla", 0.5, 0.1, seed=0)
    rates = {id(p): g["lr"] for g in sgd.param_groups for p in g["params"]}
    for layer, rate in ((model[0], 0.05), (model[2], 0.05), (model[4], 0.5)):
        assert rates[id(layer.weight)] == pytest.approx(rate)
        assert rates[id(layer.bias)] == 0.5


def test_geoopt_takes_a_qr_step(split):
    pytest.importorskip("geoopt")
    model = make_network(64, 20, "both", seed=0)
    x, y = split.train
    nn.functional.cross_entropy(model(x), y).backward()
    X, G = model[0].weight.detach().mT.clone(), model[0].weight.grad.mT.clone()
    sym = (X.mT @ G + G.mT @ X) / 2
    # geoopt's momentum starts with the gradient in the ambient space, times 0.9.
    Q, R = torch.linalg.qr(X - 0.05 * (0.9 * G + G - X @ sym))
    optimizers_of(model, "geoopt", 0.5, 0.1, seed=0)[0].step()
    assert torch.allclose(model[0].weight.mT, Q * R.diagonal().sign(), atol=1e-5)
    assert torch.equal(model[0].weight.grad.mT, G)


def test_the_learning_rates_fall_at_three_six_and_eight_ninths(split):
    run = training(split, "s=2")
    rates = []
    for _ in range(9):
        run.epoch()
        rates.append([g["lr"] for o in run.optimizers for g in o.param_groups])
    factors = [1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001]
    assert rates == [pytest.approx([0.01 * f, 0.1 * f]) for f in factors]


def test_a_training_that_diverges_stops_before_its_weights_do(split):
    run = training(split, "vanilla", epochs=4)
    x, y = split.train
    assert run.epoch()["loss"] is not None
    poisoned = x.clone()
    poisoned[-1] = float("nan")
    run.split = Split((poisoned, y), split.measured)
    rows = [run.epoch() for _ in range(3)]
    assert run.stopped and run.done and all(row["loss"] is None for row in rows)
    assert rows[1]["measured"] == rows[2]["measured"] == rows[0]["measured"]
    assert all(p.isfinite().all() for p in run.model.parameters())


def test_the_search_never_sees_the_images_of_the_test():
    search, final = (load_split("digits", kind, 300, "cpu") for kind in ("validation", "test"))
    assert [len(s.train[1]) for s in (search, final)] == [250, 300]
    assert [len(s.measured[1]) for s in (search, final)] == [50, 300]
    scale = final.train[0].std() / search.train[0].std()
    assert float(scale) == pytest.approx(1.0, abs=1e-5)

    def grey(x):  # each split is scaled by its own moments: back to the 17 levels of the digits
        levels = (16 * (x - x.amin()) / (x.amax() - x.amin())).round()
        return {tuple(row.tolist()) for row in levels}

    train = grey(search.train[0]) | grey(search.measured[0])
    assert train == grey(final.train[0]) and len(train) == 300
    assert not grey(search.train[0]) & grey(search.measured[0])
    assert not train & grey(final.measured[0])


def test_the_best_setting_that_did_not_diverge_is_chosen():
    def result(accuracy, stopped=False):
        return {"rows": [{"measured": 99.0}, {"measured": accuracy}], "stopped": stopped}

    search = {"a": result(50.0), "b": result(70.0), "c": result(70.0), "d": result(90.0, True)}
    assert mnist._chosen(search) is search["b"]
    with pytest.raises(RunError, match="every setting diverged: d. Give smaller ones to --lrs"):
        mnist._chosen({"d": search["d"]})


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"batch": 0}, "`batch` must be at least 1: got 0"),
        ({"num_images": 1}, "`num_images` must be at least 2: got 1"),
        ({"lrs": (float("nan"),)}, "`lrs` must be positive and finite: got"),
        ({"scales": (-1.0,)}, "`scales` must be positive and finite: got"),
        ({"seeds": ()}, "`seeds` must hold at least one value"),
        ({"device": "cuda"}, "--device must exist: got cuda, .* no GPU. Use --device cpu"),
    ],
)
def test_settings_that_cannot_run_are_refused_before_anything_is_written(
    tmp_path, monkeypatch, settings, message
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    config = replace(MNIST.presets["quick"], **settings)
    with pytest.raises(RunError, match=message):
        execute(MNIST, config, out=tmp_path, console=Console(quiet=True))
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A run without geoopt."""
    out = tmp_path_factory.mktemp("mnist")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mnist, "find_spec", lambda name: None)
        config = replace(MNIST.presets["quick"], **SMALL)
        folder = execute(MNIST, config, out=out, console=Console(quiet=True))
    return json.loads((folder / "summary.json").read_text())["results"]


def test_a_missing_geoopt_is_named(results):
    assert list(results["methods"]) == ["vanilla", "default", "exact", "s=2", "s=r"]
    assert "Not installed, so not run: geoopt RiemannianSGD." in MNIST.verdict(results)
    assert "geoopt RiemannianSGD is not installed" in MNIST.tables(results, {})[0].caption


def test_every_method_uses_the_best_setting_of_its_own_search(results):
    for method in results["methods"].values():
        best = max(s["accuracy"] for s in method["search"])
        (used,) = (
            s for s in method["search"] if (s["lr"], s["scale"]) == (method["lr"], method["scale"])
        )
        assert len(method["search"]) == 2 and used["accuracy"] == best


def test_the_verdict_follows_the_numbers(results):
    results = copy.deepcopy(results)
    methods = results["methods"]
    methods["s=2"]["from_exact"] = {"mean": -0.29, "error": 0.01}
    for m in ("exact", "s=2", "s=r"):
        methods[m]["from_vanilla"] = {"mean": 0.5, "error": 0.1}
        methods[m]["from_default"] = {"mean": 0.1, "error": 0.1}
    text = MNIST.verdict(results)
    assert "-0.29 ± 0.01: within our bar" in text
    assert "Against vanilla SGD, orthogonal start" in text and "vanilla SGD, default start" in text
    assert "exact is better (+0.50 ± 0.10)" in text and "exact is level (+0.10 ± 0.10)" in text
    assert text.count("vanilla training holds.") == text.count("vanilla training fails.") == 1
    methods["s=2"]["from_exact"]["mean"] = -0.31
    methods["s=2"]["from_vanilla"] = {"mean": 0.1, "error": 0.1}
    methods["s=r"]["from_vanilla"] = {"mean": -1.0, "error": None}
    text = MNIST.verdict(results)
    assert "not within our bar" in text and "s = 2 is level (+0.10 ± 0.10)" in text
    assert "s = r* is worse (-1.00)" in text and "vanilla training holds for exact alone." in text
    methods["exact"]["from_vanilla"] = {"mean": 0.0, "error": 0.1}
    methods["s=2"]["from_default"] = {"mean": 0.3, "error": 0.1}
    text = MNIST.verdict(results)
    assert "vanilla training fails." in text and "holds for s = 2 alone." in text
    methods["exact"]["error"] = 2e-4
    text = MNIST.verdict(results)
    assert "Weights are off the manifold by more than 0.0001: exact (2.0e-04)" in text
