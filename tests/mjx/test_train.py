"""The experiment on MJX: jobs side by side, scores of the original environment, stop and go on."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from rich.console import Console

pytest.importorskip("jax")
pytest.importorskip("mujoco.mjx")

from skewflow.es import InProcess, Moments
from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.rl import mjx_train
from skewflow_lab.rl.rollout import Rollout
from skewflow_lab.rl.tasks import make
from skewflow_lab.runs.reproduce import execute

RL = EXPERIMENTS["rl"]
TINY = replace(
    RL.presets["ci"],
    backend="mjx",
    method=("stoch-ortRNN", "ortinit-vanRNN", "affine"),
    hidden=(8,),
    project_every=(2,),
    generations=3,
    num_directions=3,
    num_scores=2,
    score_every=1,
    final_scores=1,
    trials=0,
    horizon=30,
    workers=1,
)


def run(out, *, resume=False, config=TINY):
    quiet = Console(quiet=True)
    return execute(RL, config, preset="ci", out=out, resume=resume, console=quiet)


def results(folder):
    return [(folder / name).read_bytes() for name in ("summary.json", "metrics.jsonl")]


def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole")
    summary = json.loads((whole / "summary.json").read_text())
    recurrent, affine = summary["results"]["groups"]
    assert list(recurrent["methods"]) == ["stoch-ortRNN", "ortinit-vanRNN p=2"]
    for group in (recurrent, affine):
        for runs in group["methods"].values():
            assert runs[0]["steps"] == 3 * 6 * 30 and len(runs[0]["curve"]) == 3
    assert recurrent["methods"]["stoch-ortRNN"][0]["drift"] < 1e-5
    assert summary["config"]["backend"] == "mjx"

    class Stopped(mjx_train.Batch):
        def evaluate(self, generations, *rest):
            if generations[0].number == 1:
                raise KeyboardInterrupt
            return super().evaluate(generations, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(mjx_train, "Batch", Stopped)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "part")
    assert results(run(tmp_path / "part", resume=True)) == results(whole)


def test_a_killed_process_leaves_a_state_that_goes_on_to_the_same_bytes(tmp_path):
    words = ["--backend", "mjx", "--preset", "ci", "--method", "affine", "--generations", "3"]
    words += ["--num-directions", "3", "--horizon", "30", "--num-scores", "2", "--workers", "1"]
    words += ["--score-every", "1", "--trials", "0"]
    command = [sys.executable, "-m", "skewflow_lab.cli", "reproduce", "rl", *words, "--out"]
    subprocess.run([*command, tmp_path / "whole"], check=True, capture_output=True)
    metrics = tmp_path / "part" / "rl" / "metrics.jsonl"
    with subprocess.Popen(
        [*command, tmp_path / "part"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        while process.poll() is None and not (metrics.exists() and metrics.read_bytes()):
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL  # or it was over before
    subprocess.run([*command, tmp_path / "part", "--resume"], check=True, capture_output=True)
    assert results(tmp_path / "part" / "rl") == results(tmp_path / "whole" / "rl")


def test_policies_and_the_clock_are_kept_for_videos_and_tables(tmp_path):
    config = replace(TINY, method=("affine",), num_scores=1)
    folder = run(tmp_path, config=config)
    job = "HalfCheetah,affine,seed=0"
    kept = torch.load(folder / "kept" / f"{job}.pt", weights_only=True)
    outcome = Rollout("HalfCheetah", 30).score(
        kept["params"], kept["seed"], Moments.from_state_dict(kept["moments"])
    )
    summary = json.loads((folder / "summary.json").read_text())
    (group,) = summary["results"]["groups"]
    assert group["methods"]["affine"][0]["score"] == outcome.value
    clock = json.loads((folder / "timing.json").read_text())["HalfCheetah,batch=0"]
    assert clock["steps"] == 2 * 6 * 30  # not the first generation, which is compiled
    assert 0 < clock["rollout seconds"] < clock["generation seconds"] < clock["seconds"]
    (start,) = json.loads((folder / "environment.json").read_text())
    assert start["jax"] and start["mujoco-mjx"] and start["simulates on"]


def test_episodes_are_capped_by_the_lengths_of_the_generation_before(tmp_path, monkeypatch):
    """Of its own job. Walker2d falls; scores are of whole episodes in the original environment."""
    asked, seen = [], []

    class Watched(mjx_train.Batch):
        def evaluate(self, generations, caps, on_chunk, starts):
            asked.append((generations, list(caps)))
            found = super().evaluate(generations, caps, on_chunk, starts)
            seen.append([returned.length for returned in found])
            return found

    monkeypatch.setattr(mjx_train, "Batch", Watched)
    monkeypatch.setattr(mjx_train, "CAP", 0.5)  # or no cap would bind in 100 steps
    monkeypatch.setattr(mjx_train, "CHUNK", 5)
    config = replace(
        TINY,
        task=("Walker2d",),
        method=("affine", "vanRNN"),
        generations=2,
        horizon=100,
        train_horizon=80,
        sigma=1.0,
    )
    folder = run(tmp_path, config=config)
    (_, first), (generations, second) = asked
    assert first == [80, 80] and second == [round(0.5 * length) for length in seen[0]]
    assert second[0] != second[1]
    assert all(length <= cap < 80 for length, cap in zip(seen[1], second, strict=True))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row, generation in zip(rows[2:], generations, strict=True):
        scores = InProcess(Rollout("Walker2d", 100)).evaluate(
            generation, [task for task in generation.tasks if task.sign == 0]
        )
        assert row["score"] == sum(o.value for o in scores) / 2


def test_the_starts_made_ahead_are_those_of_each_generation(tmp_path, monkeypatch):
    seen = []

    class Watched(mjx_train.Batch):
        def evaluate(self, generations, caps, on_chunk, starts):
            environment = make("reacher-hard")
            for generation, rows in zip(generations, starts.observation, strict=True):
                for task in generation.tasks:
                    if task.sign:
                        want = [environment.reset(seed) for seed in task.seeds]
                        assert (rows[task.direction] == np.float32(want)).all()
            seen.append(starts.observation)
            return super().evaluate(generations, caps, on_chunk, starts)

    monkeypatch.setattr(mjx_train, "Batch", Watched)
    own = {"num_evaluations": 2, "common_starts": False}
    config = replace(TINY, task=("reacher-hard",), method=("affine",), **own)
    run(tmp_path, config=config)
    drawn = np.concatenate(seen).reshape(-1, 6)
    assert len(np.unique(drawn, axis=0)) == 3 * 3 * 2  # by generation, direction and evaluation


def test_jobs_that_exceed_the_batch_make_several_batches_seed_by_seed():
    config = replace(TINY, seeds=(0, 1, 2), batch=30)
    assert RL.cells(config) == ["HalfCheetah,batch=0", "HalfCheetah,batch=1"]
    assert RL.cells(replace(config, batch=1)) == [f"HalfCheetah,batch={n}" for n in range(9)]


def test_searched_settings_reach_the_jobs(tmp_path, monkeypatch):
    used = []

    class Watched(mjx_train.Trainee):
        def __init__(self, config, job, settings, *rest):
            used.append(settings)
            super().__init__(config, job, settings, *rest)

    monkeypatch.setattr(mjx_train, "Trainee", Watched)
    folder = run(tmp_path, config=replace(TINY, method=("affine",), trials=2))
    (found,) = json.loads((folder / "summary.json").read_text())["results"]["searches"]
    assert [asdict(settings) for settings in used] == [found["settings"]]
