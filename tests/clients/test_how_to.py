"""The page on trainers runs to its end, with the examples that need the extra `clients`."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-a-trainer.md"


# Lightning's own call of torch's pytree, not ours.
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.:FutureWarning")
def test_the_page_runs_with_the_real_packages():
    for package in ("lightning", "accelerate", "transformers"):
        pytest.importorskip(package, reason="the extra `clients` is not installed")
    scope = {"__name__": "page"}
    blocks = re.findall(r"```python(?: clients)?\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 4
    for code in blocks:
        exec(code, scope)
