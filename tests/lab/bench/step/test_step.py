"""`skewflow bench step`: what it writes, and what it says when something is missing or fails."""

import csv
import json
import re
import sys
from itertools import pairwise

import pytest
import torch

from skewflow.geometry.matrices import as_matrices
from skewflow_lab.bench.peers.baselines import Method
from skewflow_lab.bench.step import command as step
from skewflow_lab.bench.step import report as step_report
from skewflow_lab.bench.step.command import StepBench
from skewflow_lab.bench.step.weights import haar_weights, plainnet110
from skewflow_lab.runs import files
from skewflow_lab.runs.files import RunError

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")


@pytest.fixture(autouse=True)
def short_visits(monkeypatch):
    def interleaved(*args, timed=step.interleaved, **options):
        return timed(*args, seconds=1e-4, **options)

    monkeypatch.setattr(step, "interleaved", interleaved)


@pytest.fixture
def bench(tmp_path, capsys):
    """Run the command with these options: its JSON file and what it printed."""

    def run(name="step.json", **options):
        options = {"d": (8,), "rounds": 2, "device": "cpu", **options}
        step.main(StepBench(out=tmp_path, **options))
        return json.loads((tmp_path / name).read_text()), capsys.readouterr().out

    return run


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    (tmp_path / "results" / "bench").mkdir(parents=True)
    monkeypatch.setattr(files, "ROOT", tmp_path)
    return tmp_path / "results" / "bench" / "step.csv"


def rows_of(result, method):
    return [row for row in result["rows"] if row["method"] == method]


def test_the_table_the_json_file_and_both_figures_are_written(bench, tmp_path):
    result, printed = bench(d=(8, 16))
    assert result["complete"]
    assert [row["d"] for row in rows_of(result, "FlowSGD s=2")] == [8, 16]
    for row in result["rows"]:
        assert (row["ms"] is None) == (row["note"] is not None) == (len(row["times"]) == 0)
    assert all(row["ratio"] == 1.0 for row in rows_of(result, "SGD"))
    for text in ("FlowSGD s=2 momentum", "FlowSGD dense", "torch orthogonal*", "8x8", "16x16"):
        assert text in printed
    assert "recomputation of the weight and its backward pass" in printed
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    assert "fitted over d ≥ 8" in (tmp_path / "step.svg").read_text()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"step.json", "step.png", "step.svg"}  # nothing half-written stays behind


def test_a_momentum_method_is_compared_with_momentum_sgd(bench):
    result, _ = bench()
    (row,), (sgd,) = rows_of(result, "FlowSGD s=2 momentum"), rows_of(result, "SGD momentum")
    assert row["base"] == "SGD momentum"
    inside = sorted(a / b for a, b in zip(row["times"], sgd["times"], strict=True))
    assert row["ratio"] == pytest.approx(sum(inside) / 2)  # the median of two


def test_one_size_has_no_scaling_figure(bench, tmp_path):
    bench()
    assert not (tmp_path / "step.png").exists()


def test_save_appends_one_row_for_each_measurement(bench, checkout):
    result, _ = bench(save=True)
    bench(save=True)
    with checkout.open() as file:
        rows = list(csv.DictReader(file))
    measured = [row for row in result["rows"] if row["ms"] is not None]
    assert len(rows) == 2 * len(measured)
    first = rows[0]
    assert (first["case"], first["method"], first["ratio"]) == ("8x8", "SGD", "1")
    assert first["torch"] == torch.__version__
    assert len(first["date"].split("-")) == 3 and "T" not in first["date"]
    for column in ("device", "threads", "python", "commit", "geoopt", "dtype", "p20", "p80"):
        assert column in first


def test_save_outside_of_a_checkout_is_refused_before_the_run(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "ROOT", tmp_path / "site-packages")
    with pytest.raises(RunError, match="not in a checkout.*pip install -e"):
        bench(save=True)
    assert not (tmp_path / "step.json").exists()


@pytest.mark.parametrize(
    "library, method",
    [("geoopt", "geoopt RiemannianSGD"), ("geotorch", "geotorch"), ("pogo", "pogo-torch")],
)
def test_a_missing_peer_is_named(bench, monkeypatch, library, method):
    monkeypatch.setitem(sys.modules, library, None)
    result, printed = bench()
    # Others may be missing too, and are named in the same line.
    assert re.search(f"{method}[^:]* at 8x8: not installed", printed.replace("\n", " "))
    assert [row["ms"] for row in rows_of(result, method)] == [None]
    assert all(row["ms"] for row in rows_of(result, "exact exp"))


def fails_in_the_making(params):
    raise ValueError("no such dtype\nsecond line")


def fails_on_its_third_call(params):
    calls = []

    def work():
        calls.append(1)
        if len(calls) > 2:
            raise torch.OutOfMemoryError("out of memory")

    return Method(work, lambda: [])


@pytest.mark.parametrize(
    "make, text",
    [
        (fails_in_the_making, "ValueError: no such dtype"),
        (fails_on_its_third_call, "OutOfMemoryError: out of memory"),
    ],
)
def test_a_failing_peer_is_named_with_the_reason_and_the_others_go_on(
    bench, monkeypatch, make, text
):
    monkeypatch.setitem(step.BASELINES, "landing", make)
    result, printed = bench()
    assert f"landing at 8x8: failed: {text}\n" in printed
    assert [row["note"] for row in rows_of(result, "landing")] == [f"failed: {text}"]
    assert all(len(row["times"]) == 2 for row in rows_of(result, "QR retraction"))


def test_cubic_methods_stop_at_their_largest_size(bench):
    result, printed = bench(d=(8, 16), largest_cubic=8)
    assert "at 16x16: not run: d > --largest-cubic 8" in printed
    assert [row["ms"] is None for row in rows_of(result, "exact exp")] == [False, True]
    assert [row["ms"] is None for row in rows_of(result, "FlowSGD s=2")] == [False, False]


def test_ctrl_c_keeps_the_sizes_that_are_done(bench, tmp_path, checkout, monkeypatch):
    def interrupted(config, case, progress, measure=step.measure):
        if case.d == 16:
            raise KeyboardInterrupt
        return measure(config, case, progress)

    monkeypatch.setattr(step, "measure", interrupted)
    with pytest.raises(SystemExit) as stopped:
        bench(d=(8, 16, 32), save=True)
    assert stopped.value.code == 130
    result = json.loads((tmp_path / "step.json").read_text())
    assert not result["complete"]
    assert {row["d"] for row in result["rows"]} == {8}
    assert len(checkout.read_text().splitlines()) > 1


def test_ctrl_c_in_the_first_size_writes_nothing(bench, tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(step, "measure", interrupted)
    with pytest.raises(SystemExit) as stopped:
        bench()
    assert stopped.value.code == 130
    assert "nothing is written" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_wide_matrix_is_stored_as_the_transpose(bench):
    result, printed = bench(k=4, wide=True)
    assert {row["case"] for row in result["rows"]} == {"4x8"}
    assert all(row["ms"] for row in rows_of(result, "FlowSGD s=2"))
    assert "4x8" in printed


def test_a_set_of_shapes_is_one_case_against_foreach_sgd(bench, monkeypatch):
    small = [(4, 3, 3, 3), (4, 4, 3, 3), (8, 4, 1, 1)]
    monkeypatch.setitem(step.SETS, "plainnet110", lambda: small)
    result, printed = bench("step-plainnet110.json", d=step.SIZES, shapes="plainnet110")
    assert result["torch_step"] == "foreach" and "torch's optimisers: foreach" in printed
    assert {row["case"] for row in result["rows"]} == {"plainnet110"}
    assert all(row["ms"] for row in rows_of(result, "FlowSGD s=8"))


def test_plainnet_110_has_109_convolutions():
    shapes = plainnet110()
    assert len(shapes) == 109
    assert [shapes.count((c, c, 3, 3)) for c in (16, 32, 64)] == [36, 35, 35]
    for entry in ((16, 3, 3, 3), (32, 16, 3, 3), (64, 32, 3, 3)):
        assert shapes.count(entry) == 1
    for out, (_, channels, *_) in pairwise(shapes):
        assert out[0] == channels


def test_weights_are_orthogonal_and_the_same_at_every_draw():
    shapes = [(5, 3), (3, 5), (4, 2, 3, 3)]
    (weights, gradients), again = (
        haar_weights(shapes, torch.float64, torch.device("cpu")) for _ in range(2)
    )
    for X in weights:
        (M,) = as_matrices(X)
        assert torch.allclose(M.mT @ M, torch.eye(M.shape[1], dtype=M.dtype))
    for one, two in zip([*weights, *gradients], [*again[0], *again[1]], strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"k": 12}, r"--k must lie between 1 and the smallest --d: got k=12, d=\(8,\)"),
        ({"d": (1,)}, r"--d must be sizes of at least 2: got \(1,\)"),
        ({"rounds": 0}, "--rounds must be at least 1: got 0"),
        ({"block_sizes": (1, 2)}, r"--block-sizes must be at least 2: got \(1, 2\)"),
        ({"shapes": "plainnet110"}, "--shapes plainnet110 fixes the sizes: leave out --d"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(bench, tmp_path, options, message):
    with pytest.raises(RunError, match=message):
        bench(**options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("below", ["", "new/folder"])
def test_a_file_in_the_folders_place_is_refused_before_the_run(tmp_path, monkeypatch, below):
    monkeypatch.setattr(step, "run", lambda *_: pytest.fail("it was measured"))
    file = tmp_path / "file"
    file.write_text("old")
    with pytest.raises(RunError, match=r"--out must be a folder that can be written .*file.* \("):
        step.main(StepBench(out=file / below, d=(8,), device="cpu"))
    assert file.read_text() == "old"


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_a_device_that_is_not_there_is_refused(bench):
    with pytest.raises(
        RunError, match="--device must exist: got cuda, .* no GPU. Use --device cpu"
    ):
        bench(device="cuda")


def test_the_exponent_is_fitted_over_the_large_sizes():
    sizes = [512, 1024, 2048, 4096, 8192]
    rows = [{"d": d, "method": "m", "ms": 1e-6 * d**2.5 if d >= 2048 else 40.0} for d in sizes]
    assert step_report.fit_sizes(sizes) == [2048, 4096, 8192]
    assert step_report.exponent(rows, "m", [2048, 4096, 8192]) == pytest.approx(2.5)
    assert step_report.exponent(rows[:3], "m", [2048, 4096, 8192]) is None
