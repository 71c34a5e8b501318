"""PlainNet on CIFAR-10: what is refused, what survives a divergence, and what the numbers say."""

from dataclasses import replace

import pytest
import torch
from rich.console import Console

from skewflow.lab.experiments.cifar import Cifar, Setting, _best, _lane
from skewflow.lab.files import RunError
from skewflow.lab.reproduce import execute

CIFAR = Cifar()
TINY = replace(
    CIFAR.presets["quick"], depth=5, width=2, batch=32, epochs=3, images=100, data="digits",
    lrs=(0.1,), scales=(1.0,),
)  # fmt: skip


@pytest.mark.parametrize(
    "options, message",
    [
        ({"depth": 7}, "--depth must be 3 n \\+ 2"),
        ({"seeds": ()}, "--seeds must hold values"),
        ({"seeds": (1, 1)}, "--seeds must hold values, each once"),
        ({"lrs": ()}, "--lrs must hold values"),
        ({"methods": ()}, "--methods must hold values"),
        ({"epochs": 0}, "--epochs must be at least 1: got 0"),
        ({"save_every": 0}, "--save-every must be at least 1"),
        ({"images": 0}, "--images must be positive: got 0"),
        ({"lr": float("inf")}, "--lr must be above 0 and finite: got inf"),
        ({"lrs": (0.1, float("nan"))}, "--lrs must be above 0 and finite: got nan"),
        ({"scales": (-1.0,)}, "--scales must be above 0 and finite: got -1.0"),
        ({"shift": float("nan")}, "--shift must be finite: got nan"),
        ({"batch": 95}, "nine tenths of the 100 training images.*got 95"),
    ],
)
def test_what_cannot_run_is_refused(options, message, tmp_path):
    with pytest.raises(RunError, match=message):
        execute(CIFAR, replace(TINY, **options), out=tmp_path, console=Console(quiet=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(RunError, match="GPU|CUDA"):
        CIFAR.cells(replace(TINY, device="cuda"))


def test_a_setting_that_diverges_leaves_the_others_alone(tmp_path):
    config = replace(TINY, methods=("vanilla", "s=2"), lrs=(1e30, 0.1))
    folder = execute(CIFAR, config, out=tmp_path, console=Console(quiet=True))
    assert (folder / "summary.json").exists()


def test_a_lane_whose_gradient_is_not_finite_stands():
    lane = _lane(TINY, Setting("s=2", 1.0), 0)
    x, y = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    lane.step(x, y)
    before = [p.detach().clone() for p in lane.model.parameters()]
    lane.step(torch.full_like(x, torch.inf), y)
    assert lane.diverged
    lane.step(x, y)
    for p, q in zip(lane.model.parameters(), before, strict=True):
        assert torch.equal(p, q)
    again = _lane(TINY, Setting("s=2", 1.0), 0)
    again.load_state_dict(lane.state_dict())
    assert again.diverged


def test_rates_drop(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr("skewflow.lab.lanes.Lane.set_lr", lambda lane, rate: seen.append(rate))
    config = replace(TINY, methods=("s=2",), epochs=9, search_epochs=9)
    execute(CIFAR, config, out=tmp_path, console=Console(quiet=True))
    assert seen == pytest.approx([0.1, 0.01, 0.001])


def test_the_best_setting_is_the_one_that_ends_highest():
    settings = [Setting("s=2", 0.1), Setting("s=2", 1.0), Setting("vanilla", 0.5)]
    ends = (0.3, 0.4, 0.1)
    curves = {s.name: [{"test": 0.9}, {"test": end}] for s, end in zip(settings, ends, strict=True)}
    assert _best(settings, curves) == {"s=2": 1.0, "vanilla": 0.5}


def test_the_verdict_and_the_table_follow_the_numbers():
    def found(name, final, error):
        curve = [{"loss": 1.0, "train": 0.9, "test": final}]
        return {
            "setting": f"{name} scale 1", "curves": [curve, curve], "final": [final, final],
            "best": [final, final], "train": [0.9, 0.9], "error": error,
        }  # fmt: skip

    methods = {
        "vanilla": found("vanilla", 0.66, 0.0),
        "exact": found("exact", 0.80, 1e-7),
        "s=2": found("s=2", 0.50, 2e-6),
        "s=r": found("s=r", 0.795, 1e-6),
    }
    results = {"depth": 110, "data": "images", "epochs": 100, "shift": 1.25, "search": {"a": 0.5}}
    results["methods"] = methods
    text = CIFAR.verdict(results)
    assert "s = d / ln d is at least vanilla's and at most 1 point below the exact" in text
    assert "(-0.50 points)" in text and "s = 2 is worse than that (-29.50 points)" in text
    assert "orthogonality error at the end is 2.0e-06" in text
    methods["s=r"]["final"] = [0.5, 0.5]
    text = CIFAR.verdict(results)
    assert "below vanilla's and more than 1 point below" in text and "s = 2 is not worse" in text
    timing = {"seed-0": {"s=r seconds an epoch": 4.0}, "seed-1": {"s=r seconds an epoch": 6.0}}
    table = CIFAR.tables(results, timing)[0]
    row = dict(zip(table.columns, table.rows[3], strict=True))
    assert row["method"] == "s=r" and row["test"] == 50.0 and row["seconds an epoch"] == 5.0
    assert row["chosen"] == "scale 1" and row["standard deviation"] == 0.0
