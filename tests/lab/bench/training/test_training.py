"""`skewflow bench training`: what it writes, and what it says when something is missing."""

import csv
import json
import re
import sys

import pytest
import torch
from torch import nn

from skewflow_lab.bench.training import command as training
from skewflow_lab.bench.training.command import TrainingBench
from skewflow_lab.bench.training.trainers import BASE, TRAINERS
from skewflow_lab.measure import capture
from skewflow_lab.runs import files
from skewflow_lab.runs.files import RunError

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
SMALL = {"plainnet110": {"depth": 5, "width": 4}, "vit": {"depth": 1, "width": 8}}
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def short_visits(monkeypatch):
    monkeypatch.setattr(training, "VISIT", 1e-4)


def small(tmp_path, network="vit", **options):
    options = {"batch": 2, "rounds": 2, "device": "cpu", **SMALL[network], **options}
    return TrainingBench(network=network, out=tmp_path / "out", **options)


@pytest.fixture
def bench(tmp_path, capsys):
    """Run the command with these options: its JSON file and what it printed."""

    def run(**options):
        config = small(tmp_path, **options)
        training.main(config)
        return json.loads(training.json_path(config).read_text()), capsys.readouterr().out

    return run


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    (tmp_path / "results" / "bench").mkdir(parents=True)
    monkeypatch.setattr(files, "ROOT", tmp_path)
    return tmp_path / "results" / "bench" / "training.csv"


def row_of(result, method):
    (row,) = (row for row in result["rows"] if row["method"] == method)
    return row


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("network, weights", [("plainnet110", 4), ("vit", 3)])
def test_every_method_is_timed_or_named_with_the_reason(bench, network, weights, precision):
    result, printed = bench(network=network, precision=precision)
    assert [row["method"] for row in result["rows"]] == list(TRAINERS)
    assert result["orthogonal_weights"] == weights
    for row in result["rows"]:
        assert (row["note"] is None) == (len(row["times"]) == 2) == (row["seconds"] is not None)
        assert row["method"] in printed
    assert all(row_of(result, name)["seconds"] for name in TRAINERS if "Flow" in name)
    assert row_of(result, BASE)["overhead_percent"] == 0
    assert f"training-{network}-{precision}-eager.json" in printed
    assert f"{weights} orthogonal weights, batch 2, {precision}, eager" in printed


def test_the_overhead_is_the_median_of_ratios_inside_a_round(bench):
    result, printed = bench()
    row, sgd = row_of(result, "FlowSGD s=2"), row_of(result, BASE)
    inside = [a / b for a, b in zip(row["times"], sgd["times"], strict=True)]
    assert row["overhead_percent"] == pytest.approx(100 * (sum(inside) / 2 - 1))
    assert f"{row['overhead_percent']:+.1f}" in printed


def test_save_appends_one_row_for_each_measurement(bench, checkout):
    result, _ = bench(save=True)
    bench(save=True)
    with checkout.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * sum(row["seconds"] is not None for row in result["rows"])
    first = rows[0]
    what = [first[key] for key in ("network", "depth", "width", "batch")]
    assert what == ["vit", "1", "8", "2"]
    assert (first["method"], first["mode"], first["overhead_percent"]) == (BASE, "eager", "0")
    assert first["unit"] == "s" and float(first["p50"]) > 0
    for column in ("precision", "channels_last", "device", "torch", "commit", "p20", "p80"):
        assert column in first


@pytest.mark.parametrize(
    "library, method", [("geoopt", "geoopt RiemannianSGD"), ("pogo", "pogo-torch")]
)
def test_a_missing_peer_is_named(bench, monkeypatch, library, method):
    monkeypatch.setitem(sys.modules, library, None)
    result, printed = bench()
    # Others may be missing too, and are named in the same line.
    assert re.search(f"{method}[^:\n]*: not installed", printed)
    assert row_of(result, method)["seconds"] is None
    assert row_of(result, "FlowSGD s=2")["seconds"]


def fails_in_the_making(model, lr):
    raise ValueError("no such layer\nsecond line")


def fails_when_it_steps(model, lr):
    def step():
        raise torch.OutOfMemoryError("out of memory")

    return step


@pytest.mark.parametrize(
    "make, text",
    [
        (fails_in_the_making, "ValueError: no such layer"),
        (fails_when_it_steps, "OutOfMemoryError: out of memory"),
    ],
)
def test_a_failing_method_is_named_with_the_reason_and_the_others_go_on(
    bench, monkeypatch, make, text
):
    monkeypatch.setitem(TRAINERS, "torch orthogonal", make)
    result, printed = bench()
    assert f"torch orthogonal: failed: {text}\n" in printed
    assert row_of(result, "torch orthogonal")["mode"] is None
    assert len(row_of(result, "FlowSGD exact")["times"]) == 2


def test_a_method_that_cannot_be_captured_is_timed_eagerly_and_marked(bench, monkeypatch, tmp_path):
    captures = iter(range(len(TRAINERS)))

    def captured(step):
        return (step, "it waits") if next(captures) == 1 else (step, None)

    monkeypatch.setattr(training, "captured", captured)
    monkeypatch.setattr(training, "check", lambda config: None)  # graphs need a CUDA device
    result, printed = bench(mode="graph")
    assert row_of(result, BASE)["mode"] == "graph"
    row = row_of(result, "FlowSGD s=2")
    assert (row["mode"], row["note"]) == ("eager", "not captured: it waits")
    assert row["seconds"] and row["overhead_percent"] is not None
    assert "FlowSGD s=2 (eager)" in printed and "FlowSGD s=2: not captured: it waits" in printed


@pytest.mark.parametrize("faster", ["first", "last"])
def test_a_convolutional_network_is_timed_in_its_faster_layout(bench, monkeypatch, faster):
    def interleaved(steps, *args, timed=training.interleaved, **options):
        if set(steps) == {"first", "last"}:
            return {name: [1.0 if name == faster else 2.0] for name in steps}, {}
        return timed(steps, *args, **options)

    monkeypatch.setattr(training, "interleaved", interleaved)
    result, printed = bench(network="plainnet110")
    assert result["channels_last"] == (faster == "last") == ("channels last" in printed)


def test_the_learning_rate_makes_the_largest_gradient_a_small_angle(tmp_path):
    config = small(tmp_path, "plainnet110", depth=14)
    model, batch = training.build(config)
    lr = training.learning_rate(config, model, batch)
    assert all(p.grad is None for p in model.parameters())
    training.training_step(config, model, batch)()
    norms = [m.weight.grad.norm().item() for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert lr * max(norms) == pytest.approx(1e-3)


def test_network_and_images_are_the_same_at_every_call_and_leave_the_generator_alone(tmp_path):
    state = torch.get_rng_state()
    (one, (x, y)), (two, (x2, y2)) = (training.build(small(tmp_path)) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, x2) and torch.equal(y, y2)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_switches_of_torch_are_as_before_after_a_run(bench):
    before = torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision
    bench()
    after = torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision
    assert after == before and not torch.backends.cudnn.benchmark


def test_ctrl_c_writes_nothing(bench, tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "run", interrupted)
    with pytest.raises(SystemExit) as stopped:
        bench()
    assert stopped.value.code == 130
    assert "nothing is written" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options, message",
    [
        ({"rounds": 0}, "--rounds must be at least 1: got 0"),
        ({"batch": 0}, "--batch must be at least 1: got 0"),
        ({"width": 100}, "--depth or --width: `width` must be a multiple of 64.*got 100"),
        ({"network": "plainnet110", "depth": 6}, r"--depth or --width: .*3 n \+ 2.*got 6"),
        ({"depth": 0}, "--depth or --width: `depth` must be at least 1: got 0"),
        ({"precision": "tf32"}, "--precision tf32 needs --device cuda: got cpu"),
        ({"mode": "graph"}, "--mode graph needs --device cuda: got cpu"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(bench, tmp_path, options, message):
    with pytest.raises(RunError, match=message):
        bench(**options)
    assert not list(tmp_path.iterdir())


def test_save_outside_of_a_checkout_is_refused_before_the_run(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "ROOT", tmp_path / "site-packages")
    with pytest.raises(RunError, match="not in a checkout.*pip install -e"):
        bench(save=True)
    assert not list(tmp_path.iterdir())


@needs_cuda
@pytest.mark.parametrize("name", [BASE, "FlowSGD s=2", "FlowSGD auto"])
@pytest.mark.parametrize(
    "network, size",
    [("plainnet110", {"depth": 5, "width": 16}), ("vit", {"depth": 1, "width": 128})],
)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_captured_training_step_does_what_the_eager_one_does(
    tmp_path, network, size, name, precision
):
    config = small(tmp_path, network, device="cuda", precision=precision, **size)
    moves = []
    for graph in (False, True):
        model, batch = training.build(config)
        before = torch.cat([p.detach().flatten() for p in model.parameters()])
        lr = training.learning_rate(config, model, batch)
        step = training.training_step(config, model, batch, TRAINERS[name](model, lr))
        num_steps = 3
        if graph:
            step, why = capture.captured(step)
            assert why is None and isinstance(step, capture.Replay)
        else:
            num_steps += capture.WARM_UP + 1  # those before the capture
        for _ in range(num_steps):
            step()
        after = torch.cat([p.detach().flatten() for p in model.parameters()])
        moves.append(after - before)
    # Sums in another order may differ; one step more or less would be a seventh.
    assert (moves[0] - moves[1]).norm() < 0.05 * moves[0].norm()


@needs_cuda
def test_a_step_that_waits_for_the_device_is_not_captured():
    x = torch.ones(3, device="cuda")
    step, why = capture.captured(lambda: x.sum().item())
    assert not isinstance(step, capture.Replay)
    assert "synchronizing" in why
    assert torch.cuda.get_sync_debug_mode() == 0
