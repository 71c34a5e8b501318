"""The experiment on MJX: jobs side by side, scores of the original environment, stop and go on."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

pytest.importorskip("jax")
pytest.importorskip("mujoco.mjx")

from skewflow.es import InProcess
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
        TINY, task=("Walker2d",), method=("affine",), generations=2, horizon=100, sigma=1.0
    )
    folder = run(tmp_path, config=config)
    assert [caps for _, caps in asked] == [[100], [round(0.5 * seen[0])]]
    assert seen[1] <= asked[1][1][0] < 100
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    scores = InProcess(Rollout("Walker2d", 100)).evaluate(
        asked[1][0], [task for task in asked[1][0].tasks if task.sign == 0]
    )
    assert rows[1]["score"] == sum(o.value for o in scores) / 2


def test_jobs_that_exceed_the_batch_make_several_lots_seed_by_seed():
    config = replace(TINY, seeds=(0, 1, 2), batch=30)
    assert RL.cells(config) == ["HalfCheetah,lot=0", "HalfCheetah,lot=1"]
    assert RL.cells(replace(config, batch=1)) == [f"HalfCheetah,lot={n}" for n in range(9)]
