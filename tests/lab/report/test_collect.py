"""Runs of parts of an experiment, put together; other runs are refused and left as they are."""

import json

import pytest

from lab.runs.test_reproduce import call
from skewflow_lab.paper import EXPERIMENTS
from skewflow_lab.report.collect import collected
from skewflow_lab.runs.files import RunError, write_json


def finished(folder, task, score, seconds=2.0, hidden=8, method="vanRNN"):
    """The files of a run of one task, of a method and two generations."""
    cell = f"{task},batch=0"
    run = {"score": score, "steps": 40, "drift": None, "moved": None, "gait": {}, "seed": 0}
    run |= {"curve": [[0, 0, 0.0], [1, 20, score]], "cell": f"{task},x"}
    group = {"task": task, "hidden": hidden, "generations": 2, "horizon": 9}
    results = {
        "updates": {},
        "batches": {cell: 12},
        "searches": [],
        "groups": [{**group, "methods": {method: [run]}}],
    }
    summary = {
        "experiment": "rl",
        "preset": "paper",
        "command": f"skewflow reproduce rl --task {task}",
        "config": {"task": [task]},
        "verdict": "",
        "results": results,
    }
    clock = {"steps": 30.0, "rollout seconds": seconds, "generation seconds": 2 * seconds}
    write_json(folder / "summary.json", summary)
    write_json(folder / "config.json", {key: summary[key] for key in ("preset", "command")})
    write_json(folder / "timing.json", {cell: {**clock, "seconds": 9.0}})
    write_json(folder / "environment.json", [{"jax": "1", "simulates on": task}])
    return folder


def test_parts_become_one_run_that_the_report_shows(tmp_path, monkeypatch, capsys):
    parts = finished(tmp_path / "a" / "rl", "Humanoid", 5), finished(tmp_path / "b", "Walker2d", 7)
    (parts[1] / "videos").mkdir()
    (parts[1] / "videos" / "walk.gif").write_bytes(b"GIF89a")
    status, out, _ = call(monkeypatch, capsys, "collect", *parts, "--out", tmp_path / "all")
    assert status == 0 and "Humanoid, h = 8, after 2 generations: vanRNN 5" in out
    folder = tmp_path / "all" / "rl"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["config"] == {"run 1": {"task": ["Humanoid"]}, "run 2": {"task": ["Walker2d"]}}
    assert summary["command"].count("skewflow reproduce rl --task") == 2
    starts = json.loads((folder / "environment.json").read_text())
    assert [(start["run"], start["simulates on"]) for start in starts] == [
        ("1", "Humanoid"),
        ("2", "Walker2d"),
    ]
    returns = (folder / "tables" / "returns.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in returns] == ["task", "Humanoid", "Walker2d"]
    rates = (folder / "tables" / "throughput.csv").read_text().splitlines()
    assert rates[1] == '"Humanoid,batch=0",12,30,15.0,7.5,9.0'
    assert (folder / "figures" / "curves.png").exists()
    assert (folder / "videos" / "walk.gif").read_bytes() == b"GIF89a"
    page = tmp_path / "page.html"
    assert call(monkeypatch, capsys, "report", tmp_path / "all", "--out", page)[0] == 0
    assert "Walker2d, h = 8" in page.read_text()
    collected(parts, tmp_path / "all")  # a collected run may be written anew


def test_batches_of_one_task_at_two_sizes_keep_their_clocks(tmp_path):
    runs = [finished(tmp_path / str(h), "Humanoid", 5, float(h), hidden=h) for h in (4, 6)]
    rates = (collected(tuple(runs), tmp_path / "all") / "tables/throughput.csv").read_text()
    assert rates.splitlines()[1:] == [
        '"Humanoid,batch=0",12,30,7.5,3.75,9.0',
        '"Humanoid,batch=0,run=2",12,30,5.0,2.5,9.0',
    ]


def test_methods_of_one_task_stand_together(tmp_path):
    runs = [
        finished(tmp_path / method, "Humanoid", 5, method=method)
        for method in ("vanRNN", "exact-ortRNN")
    ]
    summary = json.loads((collected(tuple(runs), tmp_path / "all") / "summary.json").read_text())
    (group,) = summary["results"]["groups"]
    assert list(group["methods"]) == ["vanRNN", "exact-ortRNN"]


@pytest.mark.bad_input
def test_what_cannot_be_collected_is_refused(tmp_path):
    run = finished(tmp_path / "a" / "rl", "Humanoid", 5)
    same = finished(tmp_path / "b" / "rl", "Humanoid", 6)
    other = finished(tmp_path / "c" / "rl", "Walker2d", 6)
    before = (other / "summary.json").read_bytes()
    with pytest.raises(RunError, match="vanRNN is in two of them for Humanoid, h = 8. Leave one"):
        collected((run, same), tmp_path / "all")
    with pytest.raises(RunError, match="vanRNN is in two of them for Humanoid, h = 8. Leave one"):
        collected((run, run), tmp_path / "all")
    more = finished(tmp_path / "d" / "rl", "Humanoid", 6, method="exact-ortRNN")
    summary = json.loads((more / "summary.json").read_text())
    summary["results"]["groups"][0]["horizon"] = 10
    write_json(more / "summary.json", summary)
    with pytest.raises(RunError, match="they differ in horizon for Humanoid, h = 8. Leave one"):
        collected((run, more), tmp_path / "all")
    with pytest.raises(RunError, match="holds a run, and a collected one must not replace it"):
        collected((run, other), tmp_path / "c")
    with pytest.raises(RunError, match="must be of one experiment: got none. Name the"):
        collected((), tmp_path / "all")
    with pytest.raises(RunError, match="summary.json"):
        collected((tmp_path / "none",), tmp_path / "all")
    with pytest.raises(RunError, match="that has parts: haar has none"):
        EXPERIMENTS["haar"].merge([({}, {})])
    write_json(same / "environment.json", {"jax": "1"})
    with pytest.raises(RunError, match="environment.json must be a list of JSON objects"):
        collected((same,), tmp_path / "all")
    assert (other / "summary.json").read_bytes() == before
    assert not (tmp_path / "all").exists()
