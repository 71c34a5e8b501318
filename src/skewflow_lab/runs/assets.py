"""Tables as CSV, figures as SVG and PNG; the SVG can be embedded in a page."""

import csv
import io
import re
from collections.abc import Mapping
from typing import Any

from .experiment import Experiment, Figure, Table, Timing, Value

COLOURS = (
    "#2f7ed8",
    "#e08214",
    "#1b9e77",
    "#d6455d",
    "#9467bd",
    "#6b8e23",
    "#17a2b8",
    "#8c8c8c",
    "#a9714b",
)
"""Colours of the lines; each is readable on white and on nearly black."""
INK = "#123456"
"""Placeholder for the text's colour while matplotlib draws; the page's own colour replaces it."""
DARK = "svg{color:#1c1c1c}@media(prefers-color-scheme:dark){svg{color:#e8e8e8}}"


def assets(
    experiment: Experiment[Any], results: Mapping[str, Any], timing: Timing
) -> dict[str, bytes]:
    """The files of all tables and figures of a run: paths below its folder, and contents."""
    files = {}
    for table in experiment.tables(results, timing):
        files[f"tables/{table.name}.csv"] = to_csv(table).encode()
    for figure in experiment.figures(results):
        svg = to_svg(figure).replace("<defs>", f"<style>{DARK}</style><defs>", 1)
        files[f"figures/{figure.name}.svg"] = svg.encode()
        files[f"figures/{figure.name}.png"] = to_png(figure)
    return files


def to_csv(table: Table) -> str:
    """The table with all digits."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([_cell(value) for value in row] for row in table.rows)
    return buffer.getvalue()


def _cell(value: Value) -> Value:
    """A value for a spreadsheet: text that begins like a formula gets a quote before it."""
    if isinstance(value, str) and re.match(r"[=@]|[+-].*[A-Za-z]", value):
        return f"'{value}"
    return "" if value is None else value


def to_text(value: Value) -> str:
    """A value as text: three digits, separated thousands, a dash for None.

    Example:
        >>> [to_text(v) for v in (None, "s = 2", 12800, 0.0123456, 1.5e-12, 1234.5)]
        ['–', 's = 2', '12,800', '0.0123', '1.5e-12', '1,234']
    """
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, (str, bool)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if value == 0 or 1e-3 <= abs(value) < 1e3:
        return f"{value:.3g}"
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e7 else f"{value:.1e}".replace("e-0", "e-")


def to_svg(figure: Figure, prefix: str | None = None) -> str:
    """An SVG element without a background whose text has the colour of the text around it.

    A page has several figures, so the names in each begin with `prefix`, by default the figure's
    name.
    """
    svg = _rendered(figure, INK, format="svg", transparent=True, metadata={"Date": None}).decode()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    for before in ('id="', 'href="#', "url(#"):
        svg = svg.replace(before, f"{before}{prefix or figure.name}-")
    head, body = svg.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)  # the page says how wide
    width = f"{72 * figure.size[0]:.0f}pt"
    return f'{head} role="img" aria-label="{figure.name}" style="max-width:{width}">{body}'


def to_png(figure: Figure) -> bytes:
    """The figure on white, for viewers without SVG."""
    return _rendered(figure, "#1c1c1c", format="png", dpi=160)


def _rendered(figure: Figure, ink: str, **options: Any) -> bytes:
    """The figure's file in one style, its text and axes in `ink`."""
    from cycler import cycler
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    style: dict[Any, Any] = {
        **dict.fromkeys(inked, ink),
        "axes.prop_cycle": cycler(color=COLOURS),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#8c8c8c",
        "grid.alpha": 0.25,
        "font.size": 10,
        "legend.fontsize": 8.5,
        "legend.frameon": False,
        "lines.linewidth": 1.6,
        "lines.markersize": 4,
        "svg.hashsalt": figure.name,  # names in the file are the same every time
    }
    buffer = io.BytesIO()
    with rc_context(style):
        canvas = Canvas(figsize=figure.size, layout="constrained")
        figure.draw(canvas)
        canvas.savefig(buffer, **options)
    return buffer.getvalue()
