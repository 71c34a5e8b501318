"""The page of recorded runs says of each which commit and machine it is of."""

import json
from pathlib import Path

from skewflow_lab.runs.records import page

RESULTS = Path(__file__).parents[3] / "results"


def test_the_page_of_records_is_that_of_the_records():
    assert (RESULTS / "README.md").read_text() == page(RESULTS), (
        "run `python -m skewflow_lab.runs.records`"
    )


def test_a_run_is_marked_with_the_commits_and_machines_of_all_its_starts(tmp_path):
    folder = tmp_path / "rnn" / "h200"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps({"preset": "paper"}))
    starts = [
        {"device": "NVIDIA H200", "commit": commit, "date": "2026-11-15"}
        for commit in ("abc", "abc", "def+")
    ]
    (folder / "environment.json").write_text(json.dumps(starts))
    row = "| [rnn/h200](rnn/h200) | paper | NVIDIA H200 | abc, def+ | 2026-11-15 |"
    assert page(tmp_path).splitlines()[-1] == row
