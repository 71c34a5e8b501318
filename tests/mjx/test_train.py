"""The experiment on MJX: jobs side by side, scores of the original environment, stop and go on."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from rich.console import Console

pytest.importorskip("jax")
pytest.importorskip("mujoco.mjx")

from skewflow.es import InProcess, Moments
from skewflow.lab.experiments import EXPERIMENTS
from skewflow.lab.reproduce import execute
from skewflow.lab.rl import mjx_train
from skewflow.lab.rl.rollout import Rollout

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
    command = [sys.executable, "-m", "skewflow.lab.cli", "reproduce", "rl", *words, "--out"]
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
    clock = json.loads((folder / "timing.json").read_text())["HalfCheetah,lot=0"]
    assert clock["steps"] == 2 * 6 * 30  # not the first generation, which is compiled
    assert 0 < clock["rollout seconds"] < clock["generation seconds"] < clock["seconds"]
    (start,) = json.loads((folder / "environment.json").read_text())
    assert start["jax"] and start["mujoco-mjx"] and start["simulates on"]


def test_episodes_are_capped_by_the_lengths_of_the_generation_before(tmp_path, monkeypatch):
    """Walker2d falls; its scores are the returns of whole episodes in the original environment."""
    asked, seen = [], []

    class Watched(mjx_train.Batch):
        def evaluate(self, generations, caps, on_chunk):
            asked.append((generations[0], list(caps)))
            found = super().evaluate(generations, caps, on_chunk)
            seen.append(found[0].length)
            return found

    monkeypatch.setattr(mjx_train, "Batch", Watched)
    monkeypatch.setattr(mjx_train, "CAP", 0.5)  # or no cap would bind in 100 steps
    monkeypatch.setattr(mjx_train, "CHUNK", 5)
    config = replace(
        TINY,
        task=("Walker2d",),
        method=("affine",),
        generations=2,
        horizon=100,
        train_horizon=80,
        sigma=1.0,
    )
    folder = run(tmp_path, config=config)
    assert [caps for _, caps in asked] == [[80], [round(0.5 * seen[0])]]
    assert seen[1] <= asked[1][1][0] < 80
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    scores = InProcess(Rollout("Walker2d", 100)).evaluate(
        asked[1][0], [task for task in asked[1][0].tasks if task.sign == 0]
    )
    assert rows[1]["score"] == sum(o.value for o in scores) / 2


def test_jobs_that_exceed_the_batch_make_several_lots_seed_by_seed():
    config = replace(TINY, seeds=(0, 1, 2), batch=30)
    assert RL.cells(config) == ["HalfCheetah,lot=0", "HalfCheetah,lot=1"]
    assert RL.cells(replace(config, batch=1)) == [f"HalfCheetah,lot={n}" for n in range(9)]
