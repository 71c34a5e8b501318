"""The experiment: its ci preset learns, to the same bytes on any workers and after any stop."""

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure as Canvas
from rich.console import Console
from torch import nn

from lab.runs.test_reproduce import call
from skewflow.es import EvolutionStrategy, InProcess
from skewflow.geometry import check_stiefel
from skewflow.tournaments import EdgeWeights
from skewflow.tournaments.theory import rho
from skewflow_lab.measure import balance
from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.paper.rl import claims
from skewflow_lab.paper.rl.report import casts
from skewflow_lab.paper.rl.tables import balances_of
from skewflow_lab.rl import methods, pool, ray_workers, tasks, train
from skewflow_lab.rl.rollout import Rollout
from skewflow_lab.runs.reproduce import execute
from skewflow_lab.runs.run import Run
from skewflow_lab.runs.seeds import spawn

RL = EXPERIMENTS["rl"]
QUIET = Console(quiet=True)
CI = RL.presets["ci"]
needs_simulators = pytest.mark.skipif(RL.missing() is not None, reason="needs the extra `rl`")


def run(out, workers, *, resume=False, processes=1, **settings):
    config = replace(CI, workers=workers, **settings)
    return execute(
        RL, config, preset="ci", out=out, resume=resume, processes=processes, console=QUIET
    )


def results(folder):
    return [(folder / name).read_bytes() for name in ("summary.json", "metrics.jsonl")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return run(tmp_path_factory.mktemp("alone"), 1)


@needs_simulators
def test_the_ci_run_searches_and_learns_on_the_manifold(alone):
    summary = json.loads((alone / "summary.json").read_text())
    (group,) = summary["results"]["groups"]
    (trained,) = group["methods"]["stoch-ortRNN"]
    assert trained["score"] > 10 and abs(trained["curve"][0][2]) < 2
    assert trained["drift"] < 1e-5
    assert trained["steps"] == 10 * 2 * 16 * 100
    assert [point[:2] for point in trained["curve"]] == [[g, g * 3200] for g in (0, 2, 4, 6, 8)]
    (found,) = summary["results"]["searches"]
    assert [trial["generations"] for trial in found["trials"]] == [2, 2]
    scores = [trial["score"] for trial in found["trials"]]
    assert len(set(scores)) == 2  # taken after a step: the starts are equal
    best = max(found["trials"], key=lambda trial: trial["score"])
    assert found["settings"] == {name: best[name] for name in found["settings"]}
    assert "workers" not in summary["config"] and "--workers" not in summary["command"]


@needs_simulators
def test_two_threads_and_two_processes_give_the_same_bytes(alone, tmp_path):
    assert results(run(tmp_path / "threads", 2)) == results(alone)
    few = {"method": ("exact-ortRNN", "affine"), "generations": 2, "seeds": (0, 1)}
    whole = run(tmp_path / "one", 1, **few)
    assert results(run(tmp_path / "two", 1, processes=2, **few)) == results(whole)


@needs_simulators
@pytest.mark.parametrize("cell", ["search,HalfCheetah,stoch-ortRNN,h=32", ",seed=0"])
def test_a_run_stopped_in_a_search_or_in_a_training_goes_on_to_the_same_bytes(
    alone, tmp_path, monkeypatch, cell
):
    saved = Run.save

    def stop(self, name, state):
        saved(self, name, state)
        if name.endswith(cell):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, 1)
    assert results(run(tmp_path, 2, resume=True)) == results(alone)


PROCESSES = {"backend": "processes", "trials": 0, "score_every": 1}


@needs_simulators
def test_worker_processes_one_of_them_killed_give_the_same_bytes(tmp_path, monkeypatch):
    few = {**PROCESSES, "generations": 3, "num_directions": 4}
    expected = results(run(tmp_path / "one", 1, **few))
    killed = []

    class Killed(train.LocalWorkers):
        def evaluate(self, generation, tasks=None, on_task=lambda done: None):
            def kill(done):
                on_task(done)
                if generation.number == 1 and done == 5:
                    killed.append(self.pids[0])
                    os.kill(self.pids[0], signal.SIGKILL)

            return super().evaluate(generation, tasks, kill)

    monkeypatch.setattr(train, "LocalWorkers", Killed)
    assert results(run(tmp_path / "two", 2, **few)) == expected
    assert len(killed) == 1


@needs_simulators
@pytest.mark.parametrize("common", [True, False])
def test_directions_start_where_the_settings_say(tmp_path, monkeypatch, common):
    asked = []

    class Watched(train.LocalWorkers):
        def evaluate(self, generation, tasks=None, on_task=lambda done: None):
            asked.append([task.seeds for task in generation.tasks if task.sign])
            return super().evaluate(generation, tasks, on_task)

    monkeypatch.setattr(train, "LocalWorkers", Watched)
    few = {"generations": 1, "num_directions": 3, "horizon": 5, "num_evaluations": 2}
    run(tmp_path, 1, common_starts=common, **PROCESSES, **few)
    plus, minus = asked[0][::2], asked[0][1::2]
    assert plus == minus and len({seed for seeds in plus for seed in seeds}) == (2 if common else 6)


@needs_simulators
@pytest.mark.parametrize("backend", ["envpool", "processes"])
def test_the_bonus_for_being_alive_counts_in_training_as_far_as_it_is_kept(tmp_path, backend):
    few = {"task": ("Walker2d",), "generations": 1, "num_directions": 2, "horizon": 5}
    few |= {**PROCESSES, "backend": backend}
    rows = [
        json.loads(
            (run(tmp_path / str(part), 1, alive_part=part, **few) / "metrics.jsonl").read_text()
        )
        for part in (0.0, 0.5)
    ]
    assert rows[1]["mean"] - rows[0]["mean"] == pytest.approx(5 * 0.5)  # nobody falls so soon
    assert rows[1]["score"] == rows[0]["score"]


@needs_simulators
def test_a_frozen_transition_is_kept_with_the_policy(tmp_path):
    method = ("frozen-ortRNN", "frozen-0.6-ortRNN", "vanRNN-radius-1")
    folder = run(tmp_path, 1, method=method, generations=2, trials=0)
    W = {}
    for name in method:
        file = folder / "kept" / f"HalfCheetah,{name},h=32,seed=0.pt"
        W[name] = torch.load(file, weights_only=True)["params"]["W"]
    expected, fixed = methods.start("HalfCheetah", method[0], 32, spawn(0, "policy", 32))
    assert "W" not in expected and torch.equal(W[method[0]], fixed["W"])
    assert torch.equal(W[method[1]], 0.6 * fixed["W"])
    start, _ = methods.start("HalfCheetah", "vanRNN-radius-1", 32, spawn(0, "policy", 32))
    radius = torch.linalg.eigvals(start["W"].detach()).abs().max()
    assert float(radius) == pytest.approx(1.0, rel=1e-5)
    (group,) = json.loads((folder / "summary.json").read_text())["results"]["groups"]
    moved = [runs[0]["moved"] for runs in group["methods"].values()]
    assert moved[:2] == [None, None] and moved[2] > 0


def test_every_combination_has_a_cell_of_its_own(monkeypatch):
    monkeypatch.setattr(tasks, "find_spec", lambda name: name)
    paper = RL.presets["paper"]
    cells = RL.cells(replace(paper, project_every=(20, 10, 8, 5, 4), seeds=(0, 1)))
    assert cells[:2] == ["update,d=200", "update,d=400"]
    searches = [cell for cell in cells if cell.startswith("search,")]
    assert len(searches) == 6 * (2 * 4 + 1)  # all p share one
    assert len(cells) == len(set(cells)) == 2 + len(searches) + 6 * 2 * (2 * (3 + 5) + 1)
    config = replace(paper, project_every=(20, 10, 8, 5, 4), seeds=(0, 1))
    assert RL.needs(config, "Humanoid,ortinit-vanRNN,p=8,h=400,seed=1") == {
        "search,Humanoid,ortinit-vanRNN,h=400"
    }
    assert not RL.needs(config, "update,d=200") and not RL.needs(config, searches[0])
    assert "Humanoid,ortinit-vanRNN,p=8,h=400,seed=1" in cells
    assert "reacher-hard,affine,seed=0" in cells


def recurrent(method, size, generator):
    start = methods.recurrent_params(
        4, 2, size, orthogonal=method not in methods.FREE, generator=generator
    )
    return {name: nn.Parameter(p) for name, p in start.items()}


def optimizers(params, method, rate=0.01, momentum=0.0):
    settings = methods.Settings(lr=0.1, rate=rate, momentum=momentum, sigma=0.1)
    return methods.optimizers(params, method, settings, num_directions=16, num_draws=5, seed=0)


@pytest.mark.parametrize("method", [*methods.ORTHOGONAL, "vanRNN", "ortinit-vanRNN"])
def test_a_method_keeps_its_transition_where_the_paper_says(generator, method):
    params = recurrent(method, 9, generator)
    steps = optimizers(params, method)
    orthogonal = []
    for generation in range(1, 7):
        for p in params.values():
            p.grad = torch.randn(p.shape, generator=generator)
        before = params["U"].clone()
        for optimizer in steps:
            optimizer.step()
        methods.after_step(params, method, generation, 3)
        assert (before - params["U"]).abs().min() > 0
        orthogonal.append(bool(check_stiefel(params["W"].detach())))
    assert orthogonal == {"vanRNN": [False] * 6, "ortinit-vanRNN": [False, False, True] * 2}.get(
        method, [True] * 6
    )


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("method", [*methods.ORTHOGONAL, "vanRNN", "ortinit-vanRNN"])
def test_noise_moves_every_transition_by_the_given_part(generator, method, momentum):
    params = recurrent(method, 40, generator)
    W, rate, moved = params["W"], 1e-3, []
    steps = optimizers({"W": W, "U": params["U"]}, method, rate, momentum)
    for _ in range(300):
        W.grad = torch.randn(W.shape, generator=generator) * (2 / 16) ** 0.5
        before = W.detach().clone()
        for optimizer in steps:
            optimizer.step()
        moved.append(float((W.detach() - before).norm() / before.norm()))
    assert sum(moved[100:]) / 200 == pytest.approx(rate, rel=0.1)


def test_the_stochastic_methods_turn_matchings_and_the_exact_one_all_planes(generator):
    G, turned = torch.randn(9, 9, generator=generator), {}
    start = recurrent("exact-ortRNN", 9, generator)
    for method in methods.ORTHOGONAL:
        params = {name: nn.Parameter(p.detach().clone()) for name, p in start.items()}
        flow, _ = optimizers(params, method)
        params["W"].grad = G
        flow.step()
        turn = params["W"].detach() @ start["W"].detach().mT
        turned[method] = int((turn - torch.diag(turn.diag())).abs().gt(1e-6).sum())
    assert turned["stoch-ortRNN"] == turned["stoch-uniform-ortRNN"] == 8
    assert turned["exact-ortRNN"] == 72 and 8 < turned["stoch-many-ortRNN"] <= 72


def made(*scores, first=0.0):
    return [
        {"cell": str(n), "seed": n, "score": score, "curve": [[0, 0, first], [1, 5, score]]}
        for n, score in enumerate(scores)
    ]


GROUP = {"task": "Humanoid", "hidden": 200, "generations": 9, "horizon": 9}


def test_the_verdict_follows_the_numbers():
    low, high = made(1, 3, 2, 2, 2), made(5, 7, 6, 6, 6)
    told = [
        RL.verdict({"groups": [{**GROUP, "methods": found}]})
        for found in (
            {"vanRNN": low, "stoch-ortRNN": high, "frozen-ortRNN": low},
            {"vanRNN": high, "stoch-ortRNN": low, "frozen-ortRNN": high},
            {"vanRNN": low, "stoch-ortRNN": made(2, 3, 1, 2, 2)},
            {"vanRNN": low[:3], "stoch-ortRNN": high[:3]},
        )
    ]
    assert "9 generations: stoch-ortRNN 6 ± 1, vanRNN 2 ± 1, frozen-ortRNN 2 ± 1" in told[0]
    claim = "That stoch-ortRNN is the best of the paper's methods is"
    assert f"{claim} reproduced here: stoch-ortRNN less vanRNN is +4 (4 to 4, 5 seeds)" in told[0]
    assert f"{claim} refuted here: stoch-ortRNN less vanRNN is -4 (-4 to -4, 5 seeds)" in told[1]
    assert "worse than a frozen one: stoch-ortRNN less frozen-ortRNN is -4" in told[1]
    assert "frozen one" not in told[0]
    assert f"{claim} undecided" in told[2] and f"{claim} undecided" in told[3]


def test_whether_a_method_trains_at_all_follows_the_numbers():
    good = made(50, 60, 55, 70, 65)
    still, rising = made(0, 1, -1, 0, 0), made(9, 8, 11, 10, 12)
    assert claims.fails({"vanRNN": still, "stoch-ortRNN": good})[0] == "reproduced"
    assert claims.fails({"vanRNN": rising, "stoch-ortRNN": good})[0] == "refuted"
    assert claims.fails({"vanRNN": still[:3], "stoch-ortRNN": good[:3]})[0] == "undecided"
    assert claims.fails({"vanRNN": still, "stoch-ortRNN": still})[0] == "undecided"
    assert claims.fails({"stoch-ortRNN": good}) is None
    text = RL.verdict(
        {"groups": [{**GROUP, "task": "swimmer15", "methods": {"vanRNN": still, "affine": good}}]}
    )
    assert "That vanRNN does not train on it is reproduced: it rises by -1 to 1 above" in text


def test_pairs_are_compared_by_seed():
    a, b = made(1, 10, 100, 1000, 10000), made(0, 9, 99, 999, 9999)
    pair = claims.paired({"a": a, "b": b[::-1]}, "a", "b")
    assert (pair["mean"], pair["low"], pair["high"], pair["wins"]) == (1.0, 1.0, 1.0, 5)
    assert pair["decided"]
    assert claims.paired({"a": a[1:3], "b": b}, "a", "b")["seeds"] == 2


def test_the_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        low, high = claims.interval(rng.normal(3.0, 2.0, 30).tolist())
        inside += low <= 3.0 <= high
    assert 0.88 < inside / 200 < 0.99


def test_rho_in_the_verdict_and_the_table_is_beside_that_of_noise():
    rows = [{"step": n, "rho": {"2": 2.0 + n, "4": 1.0}} for n in range(2)]
    runs = [{**run, "rho": rows} for run in made(1)]
    group = {**GROUP, "hidden": 8, "methods": {"stoch-ortRNN": runs}}
    assert RL.verdict({"groups": [group]}).endswith(
        "Along stoch-ortRNN on Humanoid, h = 8, rho changes (largest over least value at most "
        "1.50) and follows d/s: the factor lies between 0.50 and 0.62."
    )
    ((_, sizes),) = balances_of([group])
    assert [size["s"] for size in sizes] == [2, 4]
    assert sizes[0]["noise"] == balance.noise(8, [2])["2"]


def test_a_policy_that_never_moved_has_no_curve_of_rho():
    rows = [{"step": 0, "rho": {"2": 2.0, "4": 1.0}}]
    first, second = made(1, 2)
    group = {**GROUP, "hidden": 8, "methods": {"stoch-ortRNN": [first, {**second, "rho": rows}]}}
    _, drawn = RL.figures({"groups": [group]})
    canvas = Canvas(layout="constrained")
    drawn.draw(canvas)
    assert len(canvas.axes[0].get_lines()) == 2 * 2  # a curve and d/s for each size


@needs_simulators
def test_rho_is_that_of_the_generator_of_each_measured_step(tmp_path):
    settings = {"hidden": (10,), "generations": 3, "num_directions": 2, "horizon": 20}
    folder = run(tmp_path, 1, rho_every=2, **PROCESSES, **settings)
    (cell,) = json.loads((folder / "summary.json").read_text())["results"]["groups"][0]["methods"][
        "stoch-ortRNN"
    ]
    assert [row["step"] for row in cell["rho"]] == [0, 2]
    params, _ = methods.start("HalfCheetah", "stoch-ortRNN", 10, spawn(0, "policy", 10))
    sgd = torch.optim.SGD(params.values(), lr=1.0)
    options = {"num_directions": 2, "sigma": CI.sigma, "maximize": True}
    strategy = EvolutionStrategy(params, [sgd], num_scores=CI.num_scores, **options)
    before = params["W"].detach().clone()
    with InProcess(Rollout("HalfCheetah", 20)) as here:
        strategy.tell(here.evaluate(strategy.ask()))
    G = before - params["W"].detach()  # the gradient, up to the rounding of this difference
    for s in (2, 4, 5):
        expected = rho(EdgeWeights(before, G), s)
        assert cell["rho"][0]["rho"][str(s)] == pytest.approx(expected, rel=1e-4)


def test_each_method_has_a_video_of_its_best_seed_and_affine_stands_beside_every_size():
    made = lambda **scores: [{"cell": c, "score": s} for c, s in scores.items()]  # noqa: E731
    groups = [
        {"task": "Walker2d", "hidden": 9, "methods": {"vanRNN": made(a=1, b=3)}},
        {"task": "Walker2d", "hidden": 0, "methods": {"affine": made(c=2)}},
        {"task": "Humanoid", "hidden": 9, "methods": {"ortinit-vanRNN p=4": made(d=2)}},
    ]
    found = {video.name: cast for video, cast in casts({"groups": groups})}
    assert found == {
        "Walker2d-9-vanRNN": [("vanRNN", "b")],
        "Walker2d-affine": [("affine", "c")],
        "Humanoid-9-ortinit-vanRNN-p=4": [("ortinit-vanRNN p=4", "d")],
        "Walker2d-9-all": [("vanRNN", "b"), ("affine", "c")],
    }


def test_curves_are_drawn_over_steps_and_an_affine_policy_with_those_of_every_size():
    methods = {"vanRNN": made(1, 3)}, {"affine": made(2)}
    tasks = [("Walker2d", 9), ("Walker2d", 0), ("Walker2d", 5), ("Humanoid", 0)]
    groups = [{"task": t, "hidden": h, "methods": methods[h == 0]} for t, h in tasks]
    (figure,) = RL.figures({"groups": groups})
    canvas = Canvas()
    figure.draw(canvas)
    drawn = {axis.get_title(): axis.lines for axis in canvas.axes if axis.lines}
    assert {title: [line.get_label() for line in lines] for title, lines in drawn.items()} == {
        "Walker2d, h = 9": ["vanRNN", "affine"],
        "Walker2d, h = 5": ["vanRNN", "affine"],
        "Humanoid": ["affine"],
    }
    assert drawn["Walker2d, h = 9"][0].get_xydata().tolist() == [[0, 0], [5, 2]]


@pytest.mark.bad_input
def test_bad_input_is_refused_on_the_command_line(monkeypatch, capsys, tmp_path):
    words = ("reproduce", "rl", "--out", tmp_path)
    status, out, err = call(monkeypatch, capsys, *words, "--task", "Ant")
    assert status == 2 and "HalfCheetah" in out + err
    monkeypatch.setattr(tasks, "find_spec", lambda name: name)
    for option, value, text in [
        ("--generations", 0, "--generations must be at least 1: got 0."),
        ("--hidden", 1, "--hidden must be at least 2: got 1."),
        ("--seeds", -1, "--seeds must be at least 0: got -1."),
        ("--alive-part", 1.5, "--alive-part must lie between 0 and 1: got 1.5."),
        ("--rate", 0, "--rate must be above 0 and finite: got 0.0."),
        ("--momentum", 1, "--momentum must be at least 0 and below 1: got 1.0."),
        ("--trials", 3, "--trials must be 0, or a power of 2 from 2 to 16: got 3."),
        ("--trials", 32, "--trials must be 0, or a power of 2 from 2 to 16: got 32."),
        ("--seeds", 1_000_000, "--seeds must be below 1000000, that of searches: got 1000000."),
        ("--score-every", 0, "--score-every must be at least 1: got 0."),
        ("--workers", "ray", "--workers ray belongs to --backend processes: got --backend envpo"),
        ("--rho-every", -1, "--rho-every must be at least 0: got -1."),
        ("--update-sizes", 1, "--update-sizes must be at least 2: got 1."),
        ("--workers", -1, "--workers must be at least 0: got -1."),
        ("--train-horizon", 0, "--train-horizon must be at least 1: got 0."),
        ("--train-horizon", 9, "--train-horizon belongs to --backend mjx: got --backend envpool"),
        ("--address", "auto", "--address belongs to --workers ray: got --workers 0."),
        ("--task", None, "at least one task, method, hidden size and seed: got none."),
    ]:
        values = () if value is None else (value,)
        status, _, err = call(monkeypatch, capsys, *words, option, *values)
        assert status == 1 and text in " ".join(err.split())
    mjx = ("--backend", "mjx", "--method", "frozen-ortRNN")
    status, _, err = call(monkeypatch, capsys, *words, *mjx)
    assert status == 1 and "--method must be known to --backend mjx: got frozen-ortRNN" in err
    twice = ("--backend", "processes", "--seeds", 3, 3)
    status, _, err = call(monkeypatch, capsys, *words, *twice)
    assert (
        status == 1
        and "got 'HalfCheetah,stoch-ortRNN,h=32,seed=3' twice. Give each" in " ".join(err.split())
    )
    monkeypatch.setattr(ray_workers, "find_spec", lambda name: None)
    on_ray = ("--backend", "processes", "--workers", "ray")
    status, _, err = call(monkeypatch, capsys, *words, *on_ray)
    assert status == 1 and "pip install 'skewflow[ray]'" in " ".join(err.split())
    monkeypatch.setattr(tasks, "find_spec", lambda name: None if name == "jax" else name)
    status, _, err = call(monkeypatch, capsys, *words, "--backend", "mjx")
    assert status == 1 and "pip install 'skewflow[rl,rl-gpu]'" in " ".join(err.split())
    monkeypatch.setattr(tasks, "find_spec", lambda name: None)
    status, _, err = call(monkeypatch, capsys, *words)
    assert status == 1 and "pip install 'skewflow[rl]'" in " ".join(err.split())
    monkeypatch.setattr(tasks, "find_spec", lambda name: name)
    monkeypatch.setattr(pool, "find_spec", lambda name: None)
    status, _, err = call(monkeypatch, capsys, *words)
    assert status == 1 and "--backend processes does without" in " ".join(err.split())
    assert not list(tmp_path.iterdir())


def test_a_preset_that_only_another_experiment_has_is_refused(monkeypatch, capsys, tmp_path):
    words = ("reproduce", "haar", "--preset", "ci", "--out", tmp_path)
    status, out, err = call(monkeypatch, capsys, *words)
    assert status == 2 and "quick" in out + err


def test_the_claim_is_of_the_papers_methods_and_an_affine_policy_is_one_of_them():
    low, high = made(1, 3, 2, 2, 2), made(5, 7, 6, 6, 6)
    sized = {**GROUP, "methods": {"stoch-ortRNN": high, "vanRNN": low, "vanRNN-radius-1": high}}
    assert claims.best_of_all(sized["methods"])[0] == "reproduced"  # radius 1 is a control of ours
    affine = {**GROUP, "hidden": 0, "methods": {"affine": made(9, 9, 9, 9, 9)}}
    assert "refuted here: stoch-ortRNN less affine is -3" in RL.verdict({"groups": [sized, affine]})
    other = {**affine, "task": "HalfCheetah"}
    assert "is reproduced here" in RL.verdict({"groups": [sized, other]})


def test_methods_without_common_seeds_are_not_compared():
    a, b = made(1, 2, 3), [{**run, "seed": 10 + run["seed"]} for run in made(1, 2, 3)]
    assert claims.paired({"a": a, "b": b}, "a", "b") is None
    methods = {"stoch-ortRNN": a, "vanRNN": b, "frozen-ortRNN": b}
    assert claims.comparisons(methods) == [] and claims.below_frozen(methods) == []
    assert claims.best_of_all(methods) is None
