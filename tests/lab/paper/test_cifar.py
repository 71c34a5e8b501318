"""PlainNet on CIFAR-10: what is refused, what survives a divergence, and what the numbers say."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from skewflow_lab.models.lanes import Lane
from skewflow_lab.paper.cifar.experiment import Cifar, best_of
from skewflow_lab.paper.cifar.report import claims_of
from skewflow_lab.paper.cifar.series import first_steps
from skewflow_lab.paper.cifar.training import Setting, make_lane
from skewflow_lab.runs.files import RunError
from skewflow_lab.runs.reproduce import execute

CIFAR = Cifar()
RESULTS = Path(__file__).parents[3] / "results"
TINY = replace(
    CIFAR.presets["quick"], depth=5, width=2, batch=32, epochs=3, images=100, data="digits",
    lrs=(0.1,), adam_lrs=(0.01,), scales=(1.0,),
)  # fmt: skip


@pytest.mark.parametrize(
    "options, message",
    [
        ({"depth": 7}, "--depth must be 3 n \\+ 2"),
        ({"seeds": ()}, "--seeds must list one value or more"),
        ({"seeds": (1, 1)}, "--seeds must list one value or more, each once"),
        ({"lrs": ()}, "--lrs must list one value or more"),
        ({"methods": ()}, "--methods must list one value or more"),
        ({"unshifted": ("exact", "exact")}, "--unshifted must list each value once"),
        ({"test_images": 0}, "--test-images must be positive: got 0"),
        ({"adam_lrs": (0.0,)}, "--adam-lrs must be above 0 and finite: got 0.0"),
        ({"epochs": 0}, "--epochs must be at least 1: got 0"),
        ({"save_every": 0}, "--save-every must be at least 1"),
        ({"images": 0}, "--images must be positive: got 0"),
        ({"methods": ("taylor20",)}, "--methods must include exact, whose setting a series takes"),
        ({"series_depth": 8}, "--series-depth needs a series in --methods"),
        ({"series_depth": 9}, "--series-depth must be 3 n \\+ 2"),
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
    lane = make_lane(TINY, Setting("s=2", 1.0), 0)
    x, y = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    lane.step(x, y)
    before = [p.detach().clone() for p in lane.model.parameters()]
    lane.step(torch.full_like(x, torch.inf), y)
    assert lane.diverged
    lane.step(x, y)
    for p, q in zip(lane.model.parameters(), before, strict=True):
        assert torch.equal(p, q)
    again = make_lane(TINY, Setting("s=2", 1.0), 0)
    again.load_state_dict(lane.state_dict())
    assert again.diverged


def test_rates_drop_in_the_search_too(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(Lane, "set_lr", lambda lane, rate: seen.append(rate))
    config = replace(TINY, methods=("s=2",), epochs=9, search_epochs=9)
    execute(CIFAR, config, out=tmp_path, console=Console(quiet=True))
    assert seen == pytest.approx([0.1, 0.01, 0.001, 0.1, 0.01, 0.001])


def test_the_best_setting_is_the_one_that_ends_highest():
    settings = [
        Setting("s=2", 0.1), Setting("s=2", 1.0), Setting("vanilla", 0.5),
        Setting("s=2", 0.1, shifted=False),
    ]  # fmt: skip
    ends = (0.3, 0.4, 0.1, 0.2)
    curves = {s.name: [{"test": 0.9}, {"test": end}] for s, end in zip(settings, ends, strict=True)}
    assert best_of(settings, curves) == {"s=2": 1.0, "vanilla": 0.5, "s=2, no shift": 0.1}


def test_lanes_differ_in_what_their_names_say():
    def start(method, shifted=True):
        return make_lane(TINY, Setting(method, 1.0, shifted), 0).model.state_dict()

    orthogonal, vanilla, unshifted = start("exact"), start("vanilla"), start("exact", False)
    for method in ("ortinit", "s=2", "s=log", "taylor20"):
        assert all(map(torch.equal, start(method).values(), orthogonal.values()))
    assert all(map(torch.equal, start("adam").values(), vanilla.values()))
    different = {name for name, p in orthogonal.items() if not torch.equal(p, vanilla[name])}
    assert different and all(name.endswith("conv.weight") for name in different)
    for name, p in unshifted.items():
        assert torch.equal(p, orthogonal[name]) != name.endswith("norm.bias")
        assert not name.endswith("norm.bias") or (p == 0).all()


def test_every_method_of_the_preset_for_a_cpu_runs_and_its_claims_are_told(tmp_path):
    cpu = CIFAR.presets["cpu"]
    config = replace(
        TINY, methods=cpu.methods, unshifted=cpu.unshifted, test_images=40, series_depth=8,
        series_steps=2,
    )  # fmt: skip
    folder = execute(CIFAR, config, out=tmp_path, console=Console(quiet=True))
    results = json.loads((folder / "summary.json").read_text())["results"]
    assert list(results["methods"]) == [*cpu.methods, *(f"{m}, no shift" for m in cpu.unshifted)]
    assert len(claims_of(results)) == 14
    assert all(table.rows for table in CIFAR.tables(results, {}))
    chosen = {found["setting"].split()[-1] for m, found in results["methods"].items()
              if m.startswith(("exact", "taylor")) and "," not in m}  # fmt: skip
    assert len(chosen) == 1
    assert all(
        len(found["norms"]) == m.startswith("taylor") for m, found in results["methods"].items()
    )
    assert results["methods"]["s=log"]["error"] < 1e-5
    assert len(cpu.seeds) == 3 and cpu.device == "cpu"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("cifar/**/summary.json")), ids=str)
def test_recorded_runs_are_shown(path):
    results = json.loads(path.read_text())["results"]
    assert all(table.rows for table in CIFAR.tables(results, {}))
    assert CIFAR.figures(results) and "claims hold" in CIFAR.verdict(results)


def found(final, train=0.9, error=0.0, norms=()):
    curve = [{"loss": 1.0, "train": train, "test": final}]
    return {
        "setting": "m scale 1", "curves": [curve, curve], "final": [final, final + 0.001],
        "best": None, "train": [train, train], "error": error, "norms": list(norms),
    }  # fmt: skip


def results_of(**methods):
    named = {name.replace("_", "="): value for name, value in methods.items()}
    results = {"depth": 20, "data": "images", "epochs": 9, "shift": 1.25, "search": {"a": 0.5}}
    return {**results, "methods": named}


def holding(results):
    return [claim.text for claim in claims_of(results) if claim.holds]


def test_each_claim_follows_its_numbers():
    def verdict(**methods):
        return holding(results_of(**methods))

    base = {"vanilla": found(0.66), "exact": found(0.80), "s_r": found(0.795)}
    assert verdict(**base) == [
        "Orthogonal optimisation improves training", "s = d / log d is competitive with exact",
    ]  # fmt: skip
    assert verdict(**{**base, "s_r": found(0.65)}) == []
    assert verdict(s_2=found(0.5), s_r=found(0.6)) == ["s = 2 is too noisy"]
    assert verdict(s_2=found(0.595), s_r=found(0.6)) == []
    assert verdict(adam=found(0.5), vanilla=found(0.6)) == ["Vanilla Adam is challenging"]
    assert verdict(adam=found(0.7), vanilla=found(0.6)) == []
    alone = ["An orthogonal initialisation alone is not enough"]
    assert verdict(ortinit=found(0.5), exact=found(0.6)) == alone
    assert verdict(ortinit=found(0.6), exact=found(0.6)) == []
    for name, text in (("s_log", "s = log d"), ("s_sqrt", "s = sqrt d")):
        failed = {name: found(0.6, train=0.5), "s_r": found(0.6, train=0.6)}
        assert verdict(**failed) == [f"{text} does not train properly"]
        assert verdict(**{**failed, name: found(0.1, train=0.58)}) == []
    exact = found(0.6, train=0.9)
    for terms in (20, 100):
        short = {f"taylor{terms}": found(0.1, train=0.1, norms=[30.0])}
        assert verdict(exact=exact, **short) == [f"A Taylor series of {terms} terms is too short"]
        (claim,) = claims_of(results_of(exact=exact, **short))
        assert "-80.00 ± 0.00 points, norms of lr Omega up to 30" in claim.measured
        assert verdict(exact=exact, **{f"taylor{terms}": exact}) == []
    assert verdict(exact=exact, taylor200=exact) == ["A Taylor series of 200 terms is acceptable"]
    assert verdict(exact=exact, taylor200=found(0.1, train=0.1)) == []
    unshifted = {f"{m}, no shift": found(0.5) for m in ("vanilla", "exact", "s=r")}
    assert verdict(**unshifted) == []
    unshifted["exact, no shift"] = unshifted["s=r, no shift"] = found(0.6)
    (text,) = verdict(**unshifted)
    assert text.startswith("Without the shift")


def test_a_series_is_too_short_where_it_breaks_wherever_exact_steps_do_not():
    def rows(**broke_at):
        return [
            {"method": m, "scale": scale, "norm": 30.0, "broke_at": at, "error": None}
            for m, steps in broke_at.items()
            for scale, at in zip((0.1, 1.0), steps, strict=True)
        ]

    results = results_of(exact=found(0.6))
    results["series"] = {"depth": 110, "steps": 5}
    lost = {"exact": (None, None), "taylor20": (1, 2), "taylor100": (1, 1), "taylor200": (2, 1)}
    head = "In PlainNet-110 without the shift, a Taylor series of"
    for steps, holds in (
        (lost, {20, 100}),
        ({**lost, "taylor200": (1, None)}, {20, 100, 200}),
        ({**lost, "taylor20": (None, 1)}, {100}),
        ({**lost, "taylor20": (None, 1), "exact": (3, None)}, {20, 100}),
        ({**lost, "exact": (1, 1)}, set()),
    ):
        results["series"]["rows"] = rows(**steps)
        assert {int(text.removeprefix(head).split()[0]) for text in holding(results)} == holds
    results["series"]["rows"] = rows(**lost)
    first = claims_of(results)[0]
    assert "leaves the manifold within 5 steps at 2 of the 2 scales" in first.measured
    assert "first norms of lr Omega 30 to 30" in first.measured


def test_in_a_deep_net_without_the_shift_every_series_leaves_the_manifold_at_once():
    config = replace(
        TINY, methods=("exact", "taylor20", "taylor200"), series_depth=56, series_steps=1,
        images=40, batch=8, scales=(10.0,),
    )  # fmt: skip
    exact, *series = first_steps(config)["rows"]
    assert exact["broke_at"] is None and exact["error"] < 1e-5
    assert all(row["broke_at"] == 1 and row["norm"] > 20 for row in series)


def test_a_difference_within_two_standard_errors_is_no_win():
    noisy = found(0.67)
    noisy["final"] = [0.60, 0.74]
    results = results_of(vanilla=found(0.66), exact=noisy, s_r=noisy)
    assert "Orthogonal optimisation improves training" not in holding(results)
    text = CIFAR.verdict(results)
    assert "These do not: Orthogonal optimisation improves training (against vanilla" in text
    assert "mean of 2 seeds: vanilla 66.05, exact 67.00" in text


def test_the_table_follows_the_numbers_and_weights_that_are_not_finite_are_named():
    results = results_of(exact=found(0.8, error=1e-7), s_r=found(0.5, error=2e-6))
    assert "error at the end is 2.0e-06, of s=r" in CIFAR.verdict(results)
    timing = {"seed-0": {"s=r seconds an epoch": 4.0}, "seed-1": {"s=r seconds an epoch": 6.0}}
    table = CIFAR.tables(results, timing)[0]
    row = dict(zip(table.columns, table.rows[1], strict=True))
    assert row["method"] == "s=r" and row["test"] == pytest.approx(50.05)
    assert row["seconds an epoch"] == 5.0 and row["best test"] is None
    assert row["standard deviation"] == pytest.approx(0.0707, abs=1e-3)
    results["methods"]["exact"]["error"] = None
    assert "Weights are not finite at the end: exact." in CIFAR.verdict(results)


@pytest.mark.bad_input
def test_a_series_on_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(
        RunError, match="got taylor20, whose steps cannot be captured.*--device cpu"
    ):
        CIFAR.cells(replace(TINY, methods=("exact", "taylor20"), device="cuda"))
