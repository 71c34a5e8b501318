"""`skewflow bench quality`: runs, goes on after it was stopped, and refuses what cannot run."""

import json
import types
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from helpers import assert_close
from skewflow.geometry import project
from skewflow_lab.bench.quality import experiment as module
from skewflow_lab.bench.quality import methods, race
from skewflow_lab.bench.quality import search as module_search
from skewflow_lab.bench.quality.experiment import Quality
from skewflow_lab.bench.quality.matrix_problems import PCA, Procrustes
from skewflow_lab.bench.quality.methods import METHODS
from skewflow_lab.bench.quality.search import trial
from skewflow_lab.bench.quality.stochastic_problems import OnlinePCA, WideLinear
from skewflow_lab.bench.quality.suite import Entry
from skewflow_lab.report.page import build
from skewflow_lab.runs.files import RunError
from skewflow_lab.runs.reproduce import command_line, execute

# Importing pogo and geoopt compiles with torch, which warns about itself.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script")


def small(**options):
    chosen = {"problems": ("procrustes", "pca"), "methods": ("auto", "dense", "landing")}
    return replace(Quality.presets["quick"], **chosen | {"seconds": 0.02} | options)


@pytest.fixture(autouse=True)
def suite(monkeypatch):
    """Problems that take no time."""
    entries = {
        "procrustes": Entry(Procrustes, (), (), (6,), (1.0, 1.0)),
        "pca": Entry(PCA, (), (), (7, 3), (1.0, 1.0)),
    }
    monkeypatch.setattr(module, "SUITE", entries)
    monkeypatch.setattr(race, "PAUSE", 0.0)
    module._problem.cache_clear()
    yield
    module._problem.cache_clear()


@pytest.fixture
def bench(tmp_path):
    def run(resume=False, **options):
        folder = execute(
            Quality(), small(**options), out=tmp_path, resume=resume, console=Console(quiet=True)
        )
        return json.loads((folder / "summary.json").read_text())

    return run


def test_a_run_has_every_cell_in_its_tables_and_on_the_page(bench, tmp_path):
    summary = bench()
    assert summary["command"].startswith("skewflow bench quality --preset quick")
    problems, cells = Quality().tables(summary["results"], {})
    assert [row[0] for row in problems.rows] == ["procrustes", "pca"]
    assert {row[:2] for row in cells.rows} == {
        (p, m) for p in ("procrustes", "pca") for m in ("auto", "dense", "landing")
    }
    for row in summary["results"]["problems"][0]["rows"]:
        # How far it comes in its time is the machine's; that it goes downhill is not.
        assert row["final_gap"] < 1.0 and row["error"] < 1e-2 and row["ms"] > 0
        assert row["points"][0] == [0.0, 0, 1.0]
    assert (tmp_path / "quality/figures/quality.svg").stat().st_size > 1000
    assert summary["verdict"] in build(tmp_path).replace("&#34;", '"')


def test_the_best_trial_of_each_method_runs_three_times_in_the_final(bench, tmp_path):
    bench(problems=("pca",), methods=("auto", "landing"))
    cells = tmp_path / "quality/cells"
    runs = json.loads((cells / "pca_final.json").read_text())["runs"]
    for method in ("auto", "landing"):
        found = json.loads((cells / f"pca_{method}.json").read_text())
        lost = [t for t in found["trials"] if t["loss"] is None]
        best = min((t for t in found["trials"] if t not in lost), key=lambda t: t["loss"])
        assert found["best"] == {key: best[key] for key in ("exponent", "momentum", "lr")}
        own = [run for run in runs if run["method"] == method]
        assert [run["seed"] for run in own] == [0, 1, 2]
        assert all(run["lr"] == best["lr"] for run in own)
        assert all(len(run["curve"]) > 1 or run["failure"] for run in own)


def test_a_search_refines_its_best_rate_by_half_a_factor(bench, tmp_path, monkeypatch):
    def fake(problem, method, setting, seconds, best):
        return abs(setting.exponent - 0.6) + setting.momentum

    monkeypatch.setattr(module_search, "trial", fake)
    bench(problems=("pca",), methods=("auto",))
    found = json.loads((tmp_path / "quality/cells/pca_auto.json").read_text())
    assert {t["exponent"] for t in found["trials"]} == {-1, 0, 1, 2, 0.5, 1.5}
    assert found["best"]["exponent"] == 0.5 and found["best"]["momentum"] == 0.0


def test_a_stopped_search_goes_on_without_a_trial_done_twice(bench, monkeypatch):
    done = []

    def stopping(problem, method, setting, seconds, best, limit):
        if len(done) == limit:
            raise KeyboardInterrupt
        done.append((problem.shape, id(method), setting))
        return trial(problem, method, setting, seconds, best)

    for n, limit in enumerate((2, 5, 11)):
        monkeypatch.setattr(module_search, "trial", lambda *a, limit=limit: stopping(*a, limit))
        with pytest.raises(KeyboardInterrupt):
            bench(resume=n > 0)
    monkeypatch.setattr(module_search, "trial", lambda *a: stopping(*a, None))
    summary = bench(resume=True)
    assert len(done) == len(set(done)) >= 6 * 3
    assert len(summary["results"]["problems"]) == 2


def test_a_run_can_be_made_in_parts_that_a_last_call_collects(bench, monkeypatch):
    command = "skewflow bench quality --preset quick --problems"
    told = bench(problems=("procrustes",))["command"]
    assert told.startswith(f"{command} procrustes --methods auto dense landing")
    assert bench(problems=("pca",), resume=True)["command"].startswith(f"{command} pca --methods")
    monkeypatch.setattr(Quality, "run_cell", lambda *_: pytest.fail("nothing is left to do"))
    summary = bench(resume=True)
    assert [p["name"] for p in summary["results"]["problems"]] == ["procrustes", "pca"]


def test_another_set_of_methods_is_another_run(bench):
    bench()
    with pytest.raises(RunError, match="--resume needs the configuration .* methods"):
        bench(methods=("auto", "landing"), resume=True)


def test_rivals_that_are_not_there_or_do_not_fit_are_named_with_the_reason(bench, monkeypatch):
    monkeypatch.setattr(methods, "find_spec", lambda name: None)
    unfit = replace(METHODS["landing"], unfit=lambda problem: "not for this one")
    monkeypatch.setitem(METHODS, "landing", unfit)
    summary = bench(methods=("dense", "pogo", "landing"))
    rows = {row["method"]: row for row in summary["results"]["problems"][0]["rows"]}
    assert rows["pogo"]["note"].startswith("pogo is not installed; pip install")
    assert rows["landing"]["note"] == "not for this one"
    assert rows["dense"]["final_gap"] is not None
    assert summary["verdict"].startswith('no problem has both "auto" and a rival')


def test_a_final_without_methods_is_a_table_of_reasons(bench, monkeypatch):
    monkeypatch.setattr(methods, "find_spec", lambda name: None)
    summary = bench(methods=("pogo",))  # a legend without lines would warn
    notes = [row["note"] for p in summary["results"]["problems"] for row in p["rows"]]
    assert len(notes) == 2 and all("not installed" in note for note in notes)


def test_the_command_names_no_problems_where_all_run():
    config = Quality.presets["quick"]
    assert command_line(Quality(), config, "quick") == (
        "skewflow bench quality --preset quick --device cpu"
    )


def test_a_method_whose_step_outlasts_a_trial_takes_few_of_them(bench, monkeypatch):
    clock = types.SimpleNamespace(now=0.0, sleep=lambda seconds: None)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(race, "time", clock)
    monkeypatch.setattr(module_search, "gradient_ms", lambda *_: 1.0)
    made = []

    def make(problem, lr, momentum):
        X, steps = problem.start(), []
        made.append((lr, momentum, steps))

        def step(number):
            clock.now += 10.0
            steps.append(number)
            X.copy_(project(X - lr * problem.gradient(X, number)))

        return methods.Runner(step, lambda: X)

    monkeypatch.setitem(METHODS, "landing", methods.Method(make, momentum=True))
    summary = bench(problems=("pca",), methods=("landing",))
    settings = [(lr, momentum) for lr, momentum, _ in made]
    best = summary["results"]["problems"][0]["rows"][0]
    assert [len(taken) for *_, taken in made] == [3] + 3 * [1] + 3 * [1]
    assert settings[:4] == [(race.FACTOR**j, 0.0) for j in (-4, 0, -1, 1)]
    assert len({*settings[4:]}) == 1 and settings[4] in settings[1:4]
    assert best["ms"] == 10_000.0
    assert best["note"] == (
        "a step takes 10 s, longer than a trial: one step at each of three rates"
    )


@pytest.mark.parametrize("value, far", [(0.5, "3.1e-01"), (float("nan"), "not finite")])
def test_a_start_off_the_manifold_is_an_error_with_its_distance(bench, monkeypatch, value, far):
    class Lost(Procrustes):
        def start(self):
            return super().start() * torch.tensor([value, 1.0, 1.0, 1.0, 1.0, 1.0])

    entries = {"procrustes": replace(module.SUITE["procrustes"], kind=Lost)}
    monkeypatch.setattr(module, "SUITE", entries)
    monkeypatch.setattr(module_search, "trial", lambda *_: pytest.fail("nothing runs"))
    with pytest.raises(RunError, match=f"the start of procrustes must be orthonormal: .* is {far}"):
        bench(problems=("procrustes",))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_a_problem_downhill_from_the_same_start(name):
    method = METHODS[name]
    for problem in (Procrustes(6, device="cpu"), Procrustes(5, (2,), device="cpu")):
        if method.excuse(problem):
            pytest.skip(method.excuse(problem))
        setting = race.Setting(-1, 0.0)
        racer = race.begin(problem, method, setting)
        assert not isinstance(racer, str), racer
        assert_close("start", problem.start(), racer.runner.point(), torch.float32)
        if method.rates:
            for number in range(30):
                racer.runner.step(number)
        else:
            racer.advance(0.2)
        racer.evaluate()
        assert racer.failure is None and racer.away is None
        assert racer.curve[-1]["loss"] < racer.curve[0]["loss"]


@pytest.mark.parametrize(
    "problem",
    [WideLinear(12, 2, pool=3, device="cpu"), OnlinePCA(40, 15, 4, 8, device="cpu")],
    ids=["square", "tall"],
)
def test_flow_adam_takes_the_product_of_factors(problem):
    racer = race.begin(problem, METHODS["auto-adam"], race.Setting(-1, 0.0))
    for number in range(50):
        racer.runner.step(number)
    racer.evaluate()
    assert racer.curve[-1]["loss"] < racer.curve[0]["loss"] and racer.curve[-1]["error"] < 1e-5


def test_the_rates_of_flow_adam_are_those_of_exact_steps():
    problem = Procrustes(70, device="cpu")
    assert METHODS["auto-adam"].base(problem) == pytest.approx(0.1 / 70**0.5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_factored_run_takes_the_steps_of_the_dense_one(momentum):
    problem = WideLinear(12, 2, pool=3, device="cpu")
    setting = race.Setting(-1, momentum)
    points = []
    names = ("dense", "factored") if momentum else ("dense", "factored", "auto")
    for name in names:
        racer = race.begin(problem, METHODS[name], setting)
        for number in range(4):  # the momentum of factors remembers so many
            racer.runner.step(number)
        points.append(racer.runner.point())
    for point in points[1:]:  # the two kinds of momentum differ in the second order of the way
        factor = 10.0 if momentum else 1.0
        assert_close("X", points[0], point, torch.float32, factor=factor)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"problems": ("pca", "sorting")}, "--problems must be some of procrustes, pca: got sort"),
        ({"problems": ()}, "--problems must be some of procrustes, pca: got none"),
        (
            {"methods": ("adam",)},
            "--methods must be some of auto, auto-adam, auto-natural, auto-angle, s=2.*: got adam",
        ),
        ({"seconds": 0.0}, "--seconds must be above 0 and finite: got 0.0"),
        ({"seconds": float("inf")}, "--seconds must be above 0 and finite: got inf"),
        ({"seconds": float("nan")}, "--seconds must be above 0 and finite: got nan"),
        ({"problems": ("pca", "pca")}, "cells must have different names: got 'pca_auto' twice"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(bench, tmp_path, options, message):
    with pytest.raises(RunError, match=message):
        bench(**options)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused(bench):
    with pytest.raises(RunError, match="--device must exist: got cuda"):
        bench(device="cuda")
