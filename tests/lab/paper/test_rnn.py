"""The long-memory tasks, the nets that learn them, and what the experiment says of them."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from rich.console import Console
from torch.nn import functional

from helpers import assert_close
from skewflow_lab.data.sequences import Copying, Pixels
from skewflow_lab.models import recurrent
from skewflow_lab.models.recurrent import Learner
from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.paper.rnn import experiment as module
from skewflow_lab.runs.files import RunError
from skewflow_lab.runs.reproduce import execute

RNN = EXPERIMENTS["rnn"]
RESULTS = Path(__file__).parents[3] / "results"
SMALL = replace(
    RNN.presets["quick"], delays=(3,), iterations=20, epochs=1, copy_hidden=8, pixel_hidden=8
)


def copying(delay=5, batch=16):
    return Copying(delay, batch=batch, seed=0, device="cpu")


def summary(tmp_path, config):
    folder = execute(RNN, config, out=tmp_path, console=Console(quiet=True))
    return json.loads((folder / "summary.json").read_text())


def test_a_sequence_is_symbols_blanks_marker_blanks_and_its_copy_comes_last():
    x, y = copying(30, batch=4).batch(7)
    said, blank = x.argmax(-1), 0
    assert x.shape == (50, 4, 10) and (x.sum(-1) == 1).all()
    assert ((said[:10] >= 1) & (said[:10] <= 8)).all()
    assert torch.equal(said[:10], y[-10:])
    assert (said[10:40] == blank).all() and (said[40] == 9).all() and (said[41:] == blank).all()
    assert (y[:40] == blank).all()


def test_a_batch_depends_on_seed_and_number_alone():
    task = copying()
    first = task.batch(3)
    task.batch(4)
    assert all(torch.equal(a, b) for a, b in zip(first, copying().batch(3), strict=True))
    assert not torch.equal(first[1], task.batch(4)[1])
    assert not torch.equal(first[1], Copying(5, batch=16, seed=1, device="cpu").batch(3)[1])


def test_the_baseline_is_the_loss_of_blanks_and_guesses():
    task = copying(30, batch=64)

    def without_memory(x):
        logits = torch.full((*x.shape[:2], 9), -torch.inf)
        logits[:40, :, 0] = 0.0
        logits[40:, :, 1:] = 0.0  # after the marker: any of the eight
        return logits

    x, y = task.batch(0)
    assert_close("loss", task.loss(without_memory, x, y), task.baseline, torch.float32)
    assert task.baseline == 10 * math.log(8) / 50


@pytest.mark.parametrize("order", ["sequential", "permuted"])
def test_pixels_come_one_by_one_in_one_order_for_all(order):
    task = Pixels("digits", order, batch=100, seed=0, device="cpu")
    x, _ = task.batch(0)
    rows = Pixels("digits", "sequential", batch=100, seed=0, device="cpu").batch(0)[0]
    assert x.shape == (64, 100, 1) and task.num_batches == 15
    assert torch.equal(x, rows) == (order == "sequential")
    assert torch.equal(x.sort(0).values, rows.sort(0).values)
    again = Pixels("digits", order, batch=100, seed=0, device="cpu")
    assert torch.equal(again.batch(0)[0], x)


def test_an_epoch_shows_every_training_image_once_and_no_test_image():
    task = Pixels("digits", "sequential", batch=100, seed=0, device="cpu")
    shown = torch.cat([task.batch(n)[0][..., 0].mT for n in range(15)])
    assert torch.equal(shown.unique(dim=0), task._train[0].unique(dim=0))
    assert len(task._test[1]) == 297
    second = torch.cat([task.batch(n)[0][..., 0].mT for n in range(15, 30)])
    assert not torch.equal(shown, second)
    assert torch.equal(shown.unique(dim=0), second.unique(dim=0))


def test_accuracy_counts_the_test_images_that_are_known():
    task = Pixels("digits", "sequential", batch=100, seed=0, device="cpu")
    sevens = task._test[1] == 7

    def always_seven(x, last):
        return functional.one_hot(torch.full((x.shape[1],), 7), 10).float()

    assert task.accuracy(always_seven) == pytest.approx(sevens.float().mean().item())


@pytest.mark.parametrize("method", get_args(recurrent.Method))
def test_a_stopped_learner_goes_on_to_the_same_bits(method):
    if recurrent.is_missing(method):
        pytest.skip("geotorch is not installed")
    first, second = (
        Learner(copying(), method, hidden=12, seed=seed, device="cpu") for seed in (0, 1)
    )
    first.run(3)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert first.run(3) == second.run(3) and first.step == second.step == 6
    pairs = zip(first.net.parameters(), second.net.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("method", ["FlowSGD", "FlowAdam", "geotorch", "fixed"])
def test_all_start_from_the_same_net_and_only_the_fixed_transition_stays(method):
    if recurrent.is_missing(method):
        pytest.skip("geotorch is not installed")
    options = {"hidden": 12, "seed": 3, "device": "cpu"}
    task = copying()
    learner, other = Learner(task, method, **options), Learner(task, "FlowSGD", **options)
    cells = [learner.net.layer.cell, other.net.layer.cell]
    before = cells[0].weight_hh.detach().clone()
    assert_close("transition", cells[1].weight_hh, before, torch.float32)
    assert torch.equal(cells[0].input.weight, cells[1].input.weight)
    learner.run(5)
    assert torch.equal(cells[0].weight_hh, before) == (method == "fixed")
    assert learner.error() < 1e-5
    assert not torch.equal(cells[0].activation.bias, torch.zeros(12))


@pytest.mark.parametrize("method", get_args(recurrent.Method))
def test_a_factor_scales_the_rate_that_is_the_methods_own(method):
    if recurrent.is_missing(method):
        pytest.skip("geotorch is not installed")
    one, ten = (
        Learner(copying(), method, hidden=12, seed=0, device="cpu", factor=f) for f in (1.0, 10.0)
    )
    rates = [[g["lr"] for o in each.optimizers for g in o.param_groups] for each in (one, ten)]
    (scaled,) = (n for n, (a, b) in enumerate(zip(*rates, strict=True)) if a != b)
    assert rates[1][scaled] == pytest.approx(10 * rates[0][scaled])
    assert ten.rate == pytest.approx(10 * one.rate)


def test_every_method_the_lstm_too_takes_the_best_rate_of_its_own_search(tmp_path):
    methods = ("FlowSGD", "fixed", "LSTM")
    config = replace(SMALL, methods=methods, factors=(1e-4, 1.0), search_iterations=20, images=200)
    found = summary(tmp_path, config)
    results = found["results"]
    assert len(results["search"]) == 2 * 2 * 3
    for cell in results["cells"]:
        tried = {
            s["rate"]: s["value"]
            for s in results["search"]
            if (s["task"], s["method"]) == (cell["task"], cell["method"])
        }
        best = min if cell["baseline"] is not None else max
        assert len(tried) == 2 and tried[cell["rate"]] == best(tried.values())
    copying, pixels, search = RNN.tables(results, {})
    assert [table.name for table in (copying, pixels, search)] == ["copying", "pixels", "search"]
    for shown in (copying, pixels, *RNN.figures(results)):
        assert "a search that is equally wide for all" in shown.caption
    assert "of which 200 are used" in pixels.caption and len(search.rows) == 12


def test_a_factor_that_diverges_is_not_chosen(tmp_path):
    config = replace(SMALL, orders=(), methods=("LSTM",), factors=(1e40, 1.0), search_iterations=40)
    results = summary(tmp_path, config)["results"]
    assert results["search"][0]["value"] is None and results["cells"][0]["factor"] == 1.0


def test_the_search_holds_out_a_tenth_and_pools_average_pixels():
    options = {"batch": 10, "seed": 0, "device": "cpu"}
    whole = Pixels("digits", "sequential", **options)
    search = Pixels("digits", "sequential", images=1000, held_out=True, **options)
    assert torch.equal(search._train[0], whole._train[0][:900])
    assert torch.equal(search._test[0], whole._train[0][900:1000])
    half = Pixels("digits", "sequential", pool=2, **options)
    squares = whole._train[0].reshape(-1, 4, 2, 4, 2).mean((2, 4)).flatten(1)
    assert half.length == 16
    assert_close("pixels", half._train[0], squares, torch.float32)


def test_the_preset_for_a_cpu_searches_for_all_methods():
    config = RNN.presets["cpu"]
    cells = RNN.cells(config)
    for method in config.methods:
        searched = [c for c in cells if c.startswith("search,") and f"-{method}," in c]
        assert len(searched) == 4 * len(config.factors) >= 12
    assert config.search_epochs == config.epochs


def test_the_copying_task_is_solved():
    learner = Learner(copying(5, batch=32), "FlowAdam", hidden=96, seed=0, device="cpu")
    assert learner.run(20) > learner.task.baseline
    learner.run(300)
    assert learner.run(20) < module.SOLVED * learner.task.baseline


def test_a_net_that_is_not_finite_any_more_has_diverged(tmp_path, monkeypatch):
    wild = replace(recurrent.COPYING, free=1e30)
    monkeypatch.setattr(recurrent, "COPYING", wild)
    methods = ("FlowSGD", "fixed")
    found = summary(tmp_path, replace(SMALL, orders=(), methods=methods))
    assert "FlowSGD diverged, fixed diverged" in found["verdict"]


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "is_missing", lambda method: method == "geotorch")
    found = summary(tmp_path, replace(SMALL, methods=("fixed", "geotorch")))
    assert "Not installed, so not run: geotorch." in found["verdict"]
    assert [len(table.rows) for table in RNN.tables(found["results"], {})] == [1, 1]


def test_the_verdict_and_the_tables_follow_the_numbers(tmp_path):
    results = summary(tmp_path, replace(SMALL, methods=("FlowSGD", "LSTM")))["results"]
    first, second, third, _ = results["cells"]
    first.update(over_baseline=0.5, solved_at=None, error=3e-4)
    second.update(over_baseline=1e-4, solved_at=1240)
    third.update(accuracy=0.917)
    text = RNN.verdict(results)
    assert "over 3 blanks: FlowSGD does not solve it (0.5 of the baseline)" in text
    assert "LSTM solves it after 1,240 batches" in text and "FlowSGD 91.7%" in text
    assert "do not stay orthogonal to 1e-04: the largest error is 3.0e-04" in text
    first["error"] = 3e-5
    assert "The transitions stay orthogonal" in RNN.verdict(results)
    timing = {"copying-3-LSTM": {"ms per iteration": 30.0}}
    table, pixels = RNN.tables(results, timing)
    for shown in (table, pixels, *RNN.figures(results)):
        assert "set by hand, not by an even search" in shown.caption
    assert table.rows[1] == (3, "LSTM", 8, second["num_weights"], 1e-3, 1e-4, 1240, None, 3.0)
    assert pixels.rows[0][5] == 0.917 and pixels.rows[0][-1] is None


def test_a_loss_of_zero_solves_the_task_and_a_later_rise_is_told():
    cell = {"task": "copying-3", "method": "fixed", "missing": False, "baseline": 0.9}

    def verdict(*losses):
        steps = enumerate(losses, start=1)
        rows = [{"step": 20 * i, "loss": v, "accuracy": None, "error": None} for i, v in steps]
        return RNN.verdict(RNN.summarise(SMALL, {"copying-3-fixed": {**cell, "rows": rows}}))

    assert verdict(0.9, 0.0) == "Copying over 3 blanks: fixed solves it after 40 batches."
    risen = "fixed solves it after 40 batches and ends at 0.5 of the baseline."
    assert verdict(0.9, 0.0, 0.45) == f"Copying over 3 blanks: {risen}"
    assert "fixed does not solve it (0.5 of the baseline)" in verdict(0.9, 0.45)
    assert "fixed diverged" in verdict(0.9, 0.0, None)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("rnn/**/summary.json")), ids=str)
def test_recorded_runs_are_shown_those_without_a_search_too(path):
    results = json.loads(path.read_text())["results"]
    tables = RNN.tables(results, {})
    searched = any(table.name == "search" for table in tables)
    said = "a search that is equally wide" if searched else "set by hand, not by an even search"
    assert len(tables) == 2 + searched and RNN.figures(results)
    assert all(said in table.caption for table in tables[:2])


def test_a_task_without_cases_leaves_its_table_out(tmp_path):
    results = summary(tmp_path, replace(SMALL, delays=(), methods=("fixed",)))["results"]
    assert [table.name for table in RNN.tables(results, {})] == ["pixels"]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "change, message",
    [
        ({"iterations": 0}, "`iterations` must be at least 1: got 0"),
        ({"delays": (5, 0)}, "`delays` must be at least 1: got 0"),
        ({"delays": (), "orders": ()}, "`delays` or `orders`, must be given"),
        ({"methods": ()}, "one of `methods`.*got none"),
        ({"factors": (1.0, -1.0)}, "`factors` must be positive, at least one: got"),
        ({"images": 1}, "`images` must be at least 2: got 1"),
        ({"pool": 3}, "`pool` must divide the side of the images, 8: got 3"),
        ({"batch": 2000}, "`batch` must be at most the 1500 training images: got 2000"),
    ],
)
def test_settings_that_cannot_run_are_refused(tmp_path, change, message):
    config = replace(SMALL, **{"methods": ("fixed",), "delays": (), **change})
    with pytest.raises(RunError, match=message):
        execute(RNN, config, out=tmp_path, console=Console(quiet=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(
        RunError, match="--device must exist: got cuda, .* no GPU. Use --device cpu"
    ):
        RNN.cells(replace(SMALL, device="cuda"))
