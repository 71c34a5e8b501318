"""The pages on trainers and on training run to their ends, with what needs the extra `clients`."""

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


# Lightning's own call of torch's pytree, not ours.
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.:FutureWarning")
@pytest.mark.parametrize(
    "page, packages",
    [
        ("use-a-trainer", ("lightning", "accelerate", "transformers")),
        ("train-a-model", ("tensorboard",)),
    ],
)
def test_the_page_runs_with_the_real_packages(page, packages, tmp_path, monkeypatch):
    for package in packages:
        pytest.importorskip(package, reason="the extra `clients` is not installed")
    monkeypatch.chdir(tmp_path)
    scope = {"__name__": "page"}
    text = (PAGES / f"{page}.md").read_text()
    assert "```python clients" in text
    for code in re.findall(r"```python(?: clients)?\n(.*?)```", text, re.DOTALL):
        exec(code, scope)
