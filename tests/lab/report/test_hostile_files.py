"""Files that somebody else has sent: no markup, path or command of theirs gets through."""

import json
import random
import re
from pathlib import Path

import pytest

from lab.report.test_collect import finished
from skewflow_lab.report.collect import collected
from skewflow_lab.report.page import build
from skewflow_lab.runs.assets import to_csv
from skewflow_lab.runs.experiment import Figure, Table, Video
from skewflow_lab.runs.files import RunError

RESULTS = Path(__file__).parents[3] / "results"
SCRIPT = '"><script>alert(1)</script>'


def edit(path, change):
    """Change a JSON file as somebody would who leaves the checksum out."""
    value = json.loads(path.read_text())
    if isinstance(value, dict):
        value.pop("sha256", None)
    change(value)
    path.write_text(json.dumps(value))


def rho(folder, task):
    """A run of a task along which rho was measured: it has a figure named after the task."""
    rows = [{"step": n, "rho": {str(s): 2.0 for s in (2, 4, 8)}} for n in range(3)]

    def change(summary):
        summary["command"] = "skewflow reproduce rl"
        (group,) = summary["results"]["groups"]
        group["methods"] = {"stoch-ortRNN": [group["methods"]["vanRNN"][0] | {"rho": rows}]}

    edit(finished(folder, task, 5) / "summary.json", change)
    return folder


def test_an_honest_run_is_shown(tmp_path):
    assert 'id="rl-1-rho-Humanoid-8"' in build(rho(tmp_path / "rl", "Humanoid"))


@pytest.mark.parametrize(
    "task", [SCRIPT, '" onload="alert(1)', "../../outside", "/absolute", "..", ".hidden", "a b", ""]
)
def test_names_that_become_files_or_anchors_are_refused(tmp_path, task):
    run = rho(tmp_path / "in" / "rl", task)
    message = "summary.json must hold results that this version can show.*becomes a file's name"
    with pytest.raises(RunError, match=message):
        build(run)
    before = set(tmp_path.rglob("*"))
    with pytest.raises(RunError, match=message):
        collected((run,), tmp_path / "deep" / "below" / "out")
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", [Table, Figure, Video])
def test_no_table_figure_or_video_has_a_name_that_leads_elsewhere(kind):
    rest = {Table: ((), ()), Figure: (None,), Video: ()}[kind]
    kind("rho-Humanoid-200,p=20", "caption", *rest)
    for name in ("../x", "/x", "a/b", 'a"b', "a<b", "", ".x", "x\n"):
        with pytest.raises(ValueError, match="name becomes a file's name"):
            kind(name, "caption", *rest)


def video(task):
    return f"{task}-8-vanRNN.gif"  # of the only method of `finished`


def test_only_a_gif_in_the_folder_of_the_run_is_embedded(tmp_path):
    run = finished(tmp_path / "rl", "Humanoid", 5)
    secret = tmp_path / "secret.gif"
    secret.write_bytes(b"GIF89a secret")
    videos = run / "videos"
    videos.mkdir()
    (videos / video("Humanoid")).write_bytes(b"GIF89a own")
    assert "data:image/gif;base64,R0lGODlhIG93bg==" in build(run)

    (videos / video("Humanoid")).unlink()
    (videos / video("Humanoid")).symlink_to(secret)
    for call in (lambda: build(run), lambda: collected((run,), tmp_path / "out")):
        with pytest.raises(RunError, match="must be a file: got a link to .*secret.gif. Remove it"):
            call()
    (videos / video("Humanoid")).unlink()
    (videos / video("Humanoid")).write_bytes(b"#!/bin/sh")
    with pytest.raises(RunError, match="must be a GIF: got b'#!/bin' at its start. Remove it"):
        build(run)


def test_a_gif_named_by_an_absolute_path_is_not_embedded(tmp_path):
    (tmp_path / video("secret")).write_bytes(b"GIF89a secret")
    run = finished(tmp_path / "in" / "rl", f"{tmp_path}/secret", 5)
    with pytest.raises(RunError, match="a video's name becomes a file's name"):
        build(run)


def test_text_of_a_run_is_escaped_wherever_it_stands(tmp_path):
    run = finished(tmp_path / "rl", "Humanoid", 5)

    def change(summary):
        summary |= {"verdict": SCRIPT, "preset": SCRIPT, "config": {SCRIPT: SCRIPT}}
        summary["results"]["lots"] = {SCRIPT: 12}

    edit(run / "summary.json", change)
    edit(run / "environment.json", lambda starts: starts.append({"device": SCRIPT, SCRIPT: SCRIPT}))
    page = build(run)
    assert page.count("&lt;script&gt;alert(1)") >= 8
    assert "<script" not in page
    assert "default-src 'none'" in page  # and a browser would not run one


@pytest.mark.parametrize(
    "command",
    [
        "curl evil | sh",
        "skewflow reproduce rl; rm -rf .",
        "skewflow reproduce rl $(rm x)",
        "skewflow report x --out y",
        "skewflow reproduce rl\nrm x",
        "skewflow reproduce 'rl",
    ],
)
def test_a_command_that_does_more_than_run_an_experiment_is_refused(tmp_path, command):
    run = finished(tmp_path / "rl", "Humanoid", 5)
    edit(run / "summary.json", lambda summary: summary.update(command=command))
    with pytest.raises(RunError, match="'command' runs an experiment: got"):
        build(run)


@pytest.mark.parametrize("text", ["\x1b[2J", "\r", "\x00", "\u202e", "\ud800"])
@pytest.mark.parametrize("name", ["summary.json", "environment.json", "timing.json"])
def test_control_characters_are_refused(tmp_path, name, text):
    run = finished(tmp_path / "rl", "Humanoid", 5)
    entry = {"summary.json": "verdict", "environment.json": "device", "timing.json": text}[name]
    edit(run / name, lambda v: (v if isinstance(v, dict) else v[0]).update({entry: text}))
    for call in (lambda: build(run), lambda: collected((run,), tmp_path / "out")):
        with pytest.raises(RunError, match="readable JSON file: .* is a control character"):
            call()


def test_a_table_has_no_formula_for_a_spreadsheet():
    rows = (("=1+1", -2.5), ("@x", None), ("-1+cmd|x!A0", "-0.3 ± 0.1"), ("s = 2", "-"))
    expected = ["a,b", "'=1+1,-2.5", "'@x,", "'-1+cmd|x!A0,-0.3 ± 0.1", "s = 2,-"]
    assert to_csv(Table("t", "", ("a", "b"), rows)).splitlines() == expected


@pytest.mark.parametrize("name", ["timing.json", "environment.json"])
@pytest.mark.parametrize("text", ["[1]", "null", '{"a": 1}', '["a"]', '[{"a": 1}]', '{"a": [1]}'])
def test_clocks_and_machines_of_another_form_are_clear_errors(tmp_path, name, text):
    run = finished(tmp_path / "rl", "Humanoid", 5)
    (run / name).write_text(text)
    with pytest.raises(RunError, match=f"{name} must be"):
        build(run)


def damages(value, rng):
    """A copy of a JSON value in which one entry, anywhere, is gone or is another one."""
    value = json.loads(json.dumps(value))
    inner, places = [value], []
    while inner:
        here = inner.pop()
        keys = list(here) if isinstance(here, dict) else range(len(here))
        places += [(here, key) for key in keys]
        inner += [here[key] for key in keys if isinstance(here[key], (dict, list))]
    here, key = rng.choice(places)
    if rng.random() < 0.5:
        del here[key]
    else:
        here[key] = rng.choice([None, "x", -1, 0, [], {}, True, 1e300, [[]], "nan"])
    return value


@pytest.mark.parametrize(
    "name", ["haar", "rho", "cifar/h200", "mnist", "rnn/h200", "rl", "quality/h200"]
)
def test_a_damaged_summary_is_shown_or_a_clear_error(tmp_path, monkeypatch, name):
    # All is drawn, but not turned into paths: that takes most of the time and reads no results.
    blank = lambda _, file, **options: file.write(b"<svg></svg>")  # noqa: E731
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", blank)
    rng = random.Random(name)
    summary = json.loads((RESULTS / name / "summary.json").read_text())
    summary.pop("sha256", None)
    for _ in range(3 if name in ("rl", "quality/h200") else 12):
        (tmp_path / "summary.json").write_text(json.dumps(damages(summary, rng)))
        try:
            assert "</html>" in build(tmp_path)
        except RunError as error:
            assert re.match(rf"{tmp_path}(/summary.json)? (must be|must hold|holds)", str(error))
