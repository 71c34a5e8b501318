"""The experiment: its ci preset learns, to the same bytes on any workers and after any stop."""

import json
import os
import signal
from dataclasses import replace

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
from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.paper.rl import experiment as module
from skewflow_lab.paper.rl.report import casts
from skewflow_lab.rl import methods, ray_workers, tasks
from skewflow_lab.rl.rollout import Rollout
from skewflow_lab.runs.reproduce import execute
from skewflow_lab.runs.seeds import spawn

RL = EXPERIMENTS["rl"]
CI = RL.presets["ci"]
needs_simulators = pytest.mark.skipif(RL.missing() is not None, reason="needs the extra `rl`")


def run(out, workers, *, resume=False, **settings):
    config = replace(CI, workers=workers, **settings)
    quiet = Console(quiet=True)
    return execute(RL, config, preset="ci", out=out, resume=resume, console=quiet)


def results(folder):
    return [(folder / name).read_bytes() for name in ("summary.json", "metrics.jsonl")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return run(tmp_path_factory.mktemp("alone"), 1)


@needs_simulators
def test_the_ci_run_learns_on_the_manifold(alone):
    summary = json.loads((alone / "summary.json").read_text())
    (group,) = summary["results"]["groups"]
    (trained,) = group["methods"]["stoch-ortRNN"]
    assert trained["score"] > 20 and abs(trained["curve"][0]) < 2
    assert trained["drift"] < 1e-5
    assert trained["steps"] == 10 * 2 * 16 * 200
    assert "workers" not in summary["config"] and "--workers" not in summary["command"]


FEW = {"generations": 3, "num_directions": 2, "rho_every": 1}


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return results(run(tmp_path_factory.mktemp("few"), 1, **FEW))


@needs_simulators
def test_two_workers_one_of_them_killed_in_mid_generation_give_the_same_bytes(
    few, tmp_path, monkeypatch
):
    killed = []

    class Killed(module.LocalWorkers):
        def evaluate(self, generation, tasks=None, on_task=lambda done: None):
            def kill(done):
                on_task(done)
                if generation.number == 1 and done == 2:
                    killed.append(self.pids[0])
                    os.kill(self.pids[0], signal.SIGKILL)

            return super().evaluate(generation, tasks, kill)

    monkeypatch.setattr(module, "LocalWorkers", Killed)
    assert results(run(tmp_path, 2, **FEW)) == few
    assert len(killed) == 1


@needs_simulators
def test_a_stopped_run_goes_on_to_the_same_bytes_with_other_workers(few, tmp_path, monkeypatch):
    class Stopped(module.LocalWorkers):
        def evaluate(self, generation, tasks=None, on_task=lambda done: None):
            if generation.number == 2:
                raise KeyboardInterrupt
            return super().evaluate(generation, tasks, on_task)

    with monkeypatch.context() as patch:
        patch.setattr(module, "LocalWorkers", Stopped)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, 1, **FEW)
    assert results(run(tmp_path, 2, resume=True, **FEW)) == few


@needs_simulators
@pytest.mark.parametrize("common", [True, False])
def test_directions_start_where_the_settings_say(tmp_path, monkeypatch, common):
    asked = []

    class Watched(module.LocalWorkers):
        def evaluate(self, generation, tasks=None, on_task=lambda done: None):
            asked.append([task.seeds for task in generation.tasks if task.sign])
            return super().evaluate(generation, tasks, on_task)

    monkeypatch.setattr(module, "LocalWorkers", Watched)
    few = {"generations": 1, "num_directions": 3, "horizon": 5, "num_evaluations": 2}
    run(tmp_path, 1, common_starts=common, **few)
    plus, minus = asked[0][::2], asked[0][1::2]
    assert plus == minus and len({seed for seeds in plus for seed in seeds}) == (2 if common else 6)


@needs_simulators
def test_the_bonus_for_being_alive_counts_in_training_as_far_as_it_is_kept(tmp_path):
    few = {"task": ("Walker2d",), "generations": 1, "num_directions": 2, "horizon": 5}
    rows = [
        json.loads(
            (run(tmp_path / str(part), 1, alive_part=part, **few) / "metrics.jsonl").read_text()
        )
        for part in (0.0, 0.5)
    ]
    assert rows[1]["mean"] - rows[0]["mean"] == pytest.approx(5 * 0.5)  # nobody falls so soon
    assert rows[1]["score"] == rows[0]["score"]


def test_every_combination_has_a_cell_of_its_own(monkeypatch):
    monkeypatch.setattr(tasks, "find_spec", lambda name: name)
    paper = RL.presets["paper"]
    cells = RL.cells(replace(paper, project_every=(20, 10, 8, 5, 4), seeds=(0, 1)))
    assert cells[:2] == ["update,d=200", "update,d=400"]
    assert len(cells) == len(set(cells)) == 2 + 6 * 2 * (2 * (3 + 5) + 1)
    assert "Humanoid,ortinit-vanRNN,p=8,h=400,seed=1" in cells
    assert "reacher-hard,affine,seed=0" in cells


@pytest.mark.parametrize("method", ["stoch-ortRNN", "exact-ortRNN", "vanRNN", "ortinit-vanRNN"])
def test_a_method_keeps_its_transition_where_the_paper_says(generator, method):
    params = {
        name: nn.Parameter(p)
        for name, p in methods.recurrent_params(
            4, 2, 9, orthogonal=method != "vanRNN", generator=generator
        ).items()
    }
    steps = methods.optimizers(params, method, lr=0.1, orthogonal_lr=0.01, seed=0)
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
    assert (
        orthogonal
        == {
            "stoch-ortRNN": [True] * 6,
            "exact-ortRNN": [True] * 6,
            "vanRNN": [False] * 6,
            "ortinit-vanRNN": [False, False, True] * 2,
        }[method]
    )


def test_the_stochastic_method_turns_a_matching_and_the_exact_one_all_planes(generator):
    start = methods.recurrent_params(4, 2, 9, orthogonal=True, generator=generator)
    G = torch.randn(9, 9, generator=generator)
    turned = {}
    for method in methods.ORTHOGONAL:
        params = {name: nn.Parameter(p.clone()) for name, p in start.items()}
        flow, _ = methods.optimizers(params, method, lr=0.1, orthogonal_lr=0.01, seed=0)
        params["W"].grad = G
        flow.step()
        turn = params["W"].detach() @ start["W"].mT
        turned[method] = int((turn - torch.diag(turn.diag())).abs().gt(1e-5).sum())
    assert turned == {"stoch-ortRNN": 8, "exact-ortRNN": 72}


def test_the_verdict_follows_the_numbers():
    made = lambda *scores: [{"score": score} for score in scores]  # noqa: E731
    group = {"task": "Humanoid", "hidden": 200, "generations": 9}
    low = made(1, 3, 2, 2)
    found = {
        "groups": [
            {**group, "methods": {"vanRNN": low, "stoch-ortRNN": made(5, 7, 6, 6)}},
            {**group, "methods": {"vanRNN": low, "exact-ortRNN": made(2, 9, 9, 9)}},
            {**group, "methods": {"affine": made(1), "exact-ortRNN": made(9)}},
            {**group, "task": "swimmer15", "hidden": 0, "methods": {"affine": made(4)}},
        ],
    }
    text = RL.verdict(found)
    assert "stoch-ortRNN 6 (5 to 7), vanRNN 2 (1 to 3); every seed of stoch-ortRNN is" in text
    assert "the seeds of exact-ortRNN and vanRNN overlap" in text
    assert "affine 1 (1 to 1); fewer than 4 seeds rank nothing" in text
    assert text.endswith("swimmer15, after 9 generations: affine 4 (4 to 4).")
    rows = [{"step": n, "rho": {"2": 2.0 + n, "4": 1.0}} for n in range(2)]
    found["groups"].append(
        {**group, "hidden": 8, "methods": {"stoch-ortRNN": [{"score": 1, "rho": rows}]}}
    )
    assert RL.verdict(found).endswith(
        "Along stoch-ortRNN on Humanoid, h = 8, rho changes (largest over least value at most "
        "1.50) and follows d/s: the factor lies between 0.50 and 0.62."
    )


def test_a_policy_that_never_moved_has_no_curve_of_rho():
    rows = [{"step": 0, "rho": {"2": 2.0, "4": 1.0}}]
    runs = [{"cell": "a", "curve": [1.0]}, {"cell": "b", "curve": [1.0], "rho": rows}]
    group = {"task": "hopper-stand", "hidden": 8, "generations": 1, "horizon": 9, "num_scores": 1}
    _, drawn = RL.figures({"groups": [{**group, "methods": {"stoch-ortRNN": runs}}]})
    canvas = Canvas(layout="constrained")
    drawn.draw(canvas)
    assert len(canvas.axes[0].get_lines()) == 2 * 2  # a curve and d/s for each size


@needs_simulators
def test_rho_is_that_of_the_generator_of_each_measured_step(tmp_path):
    settings = {"hidden": (10,), "generations": 3, "num_directions": 2, "horizon": 20}
    folder = run(tmp_path, 1, rho_every=2, **settings)
    (cell,) = json.loads((folder / "summary.json").read_text())["results"]["groups"][0]["methods"][
        "stoch-ortRNN"
    ]
    assert [row["step"] for row in cell["rho"]] == [0, 2]
    params = methods.start("HalfCheetah", "stoch-ortRNN", 10, spawn(0, "policy", 10))
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


def test_an_affine_policy_is_drawn_with_those_of_every_size():
    methods = {"vanRNN": [{"curve": [1.0, 2.0]}]}, {"affine": [{"curve": [0.0, 1.0]}]}
    tasks = [("Walker2d", 9), ("Walker2d", 0), ("Walker2d", 5), ("Humanoid", 0)]
    groups = [{"task": t, "hidden": h, "methods": methods[h == 0]} for t, h in tasks]
    (figure,) = RL.figures({"groups": groups})
    canvas = Canvas()
    figure.draw(canvas)
    assert {
        axis.get_title(): [line.get_label() for line in axis.lines] for axis in canvas.axes
    } == {
        "Walker2d, h = 9": ["vanRNN", "affine"],
        "Walker2d, h = 5": ["vanRNN", "affine"],
        "Humanoid": ["affine"],
    }


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
        ("--orthogonal-lr", 0, "--orthogonal-lr must be above 0 and finite: got 0.0."),
        ("--rho-every", -1, "--rho-every must be at least 0: got -1."),
        ("--update-sizes", 1, "--update-sizes must be at least 2: got 1."),
        ("--workers", -1, "--workers must be at least 0: got -1."),
        ("--train-horizon", 0, "--train-horizon must be at least 1: got 0."),
        ("--train-horizon", 9, "--train-horizon belongs to --backend mjx: got --backend proc"),
        ("--address", "auto", "--address belongs to --workers ray: got --workers 0."),
        ("--task", None, "at least one task, method, hidden size and seed: got none."),
    ]:
        values = () if value is None else (value,)
        status, _, err = call(monkeypatch, capsys, *words, option, *values)
        assert status == 1 and text in " ".join(err.split())
    twice = ("--backend", "mjx", "--seeds", 3, 3)
    status, _, err = call(monkeypatch, capsys, *words, *twice)
    assert (
        status == 1
        and "got 'HalfCheetah,stoch-ortRNN,h=64,seed=3' twice. Give each" in " ".join(err.split())
    )
    monkeypatch.setattr(ray_workers, "find_spec", lambda name: None)
    status, _, err = call(monkeypatch, capsys, *words, "--workers", "ray")
    assert status == 1 and "pip install 'skewflow[ray]'" in " ".join(err.split())
    monkeypatch.setattr(tasks, "find_spec", lambda name: None if name == "jax" else name)
    status, _, err = call(monkeypatch, capsys, *words, "--backend", "mjx")
    assert status == 1 and "pip install 'skewflow[rl,rl-gpu]'" in " ".join(err.split())
    monkeypatch.setattr(tasks, "find_spec", lambda name: None)
    status, _, err = call(monkeypatch, capsys, *words)
    assert status == 1 and "pip install 'skewflow[rl]'" in " ".join(err.split())
    assert not list(tmp_path.iterdir())


def test_a_preset_that_only_another_experiment_has_is_refused(monkeypatch, capsys, tmp_path):
    words = ("reproduce", "haar", "--preset", "ci", "--out", tmp_path)
    status, out, err = call(monkeypatch, capsys, *words)
    assert status == 2 and "quick" in out + err
