"""`skewflow results`: writes the page of results, and the table and figure of README.md."""

from pathlib import Path

from ..runs.files import ROOT, write_atomically
from .figure import draw
from .page import page
from .readme import replaced


def results(root: Path = ROOT) -> None:
    """Write docs/results.md, and the table and the figure of README.md, from the files in results/.

    Args:
        root: Root of the checkout.
    """
    recorded, readme = root / "results", root / "README.md"
    write_atomically(root / "docs" / "results.md", page(recorded))
    write_atomically(readme, replaced(readme.read_text(encoding="utf-8"), recorded))
    draw(recorded, root / "docs" / "figures" / "races.png")
    print("written: docs/results.md, docs/figures/races.png and the table of README.md")
