"""Verdict, tables and figure of the long-memory runs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from ...models.recurrent import BY_HAND, Method
from ...runs.experiment import Figure, Table, Timing, Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

SOLVED = 1e-3
"""Fraction of the baseline's loss below which a net copies."""
LARGEST_ERROR = 1e-4
SEARCHED = (
    "The learning rate that is a method's own (that of the transition, over the length of the "
    "sequence; of the input weights and the head if the transition is fixed; of the whole LSTM) is "
    "the best of a search that is equally wide for all: see the table of the search. The others "
    "were set by hand, by trying a handful at small size."
)
"""Note in tables and figures if a search chose learning rates."""


def verdict_of(results: Mapping[str, Any]) -> str:
    """Which methods solve the tasks and when, and how orthogonal their transitions are."""
    parts = []
    for task, cells in _by_task(results).items():
        said = ", ".join(_said(cell) for cell in cells)
        if cells[0]["baseline"] is not None:
            parts.append(f"Copying over {task.removeprefix('copying-')} blanks: {said}.")
        else:
            parts.append(f"Pixels, {task} ({_images(results)}): {said}.")
    errors = [c["error"] for c in results["cells"] if c.get("error") is not None]
    if errors:
        kept = "stay" if max(errors) <= LARGEST_ERROR else "do not stay"
        parts.append(
            f"The transitions {kept} orthogonal to {LARGEST_ERROR:.0e}: the largest error is "
            f"{max(errors):.1e}."
        )
    if missing := sorted({c["method"] for c in results["cells"] if c["missing"]}):
        parts.append(f"Not installed, so not run: {', '.join(missing)}.")
    return " ".join(parts)


def tables_of(results: Mapping[str, Any], timing: Timing) -> list[Table]:
    """A table for each kind of task, and one of the search."""
    copying: list[tuple[Value, ...]] = []
    pixels: list[tuple[Value, ...]] = []
    for task, cells in _by_task(results).items():
        for c in cells:
            ms = timing.get(c["cell"], {}).get("ms per iteration")
            head = (c["method"], c["hidden"], c["num_weights"], c.get("rate"))
            if c["baseline"] is not None:
                T = int(task.removeprefix("copying-"))
                seconds = None if ms is None else ms / 10
                ours = (c["over_baseline"], c["solved_at"], c["error"], seconds)
                copying.append((T, *head, *ours))
            else:
                seconds = None if ms is None else ms * c["num_batches"] / 1e3
                pixels.append((task, *head, c["accuracy"], c["error"], seconds))
    devices = {c["device"] for c in results["cells"] if not c["missing"]}
    where = f"Batches of {results['batch']}, on {' and '.join(sorted(devices))}. {_choice(results)}"
    columns = ("method", "width", "weights", "learning rate")
    tables = (
        Table(
            "copying",
            "Mean loss of the last 20 batches over the baseline 10 ln 8 / (T + 20), and the "
            f"number of batches after which the mean of 20 was below {SOLVED:g} of it. The "
            "error is the largest ||W^T W - I||_F / sqrt(d) in training; seconds are those of "
            f"100 batches. {where}",
            ("T", *columns, "loss over baseline", "solved after", "error", "seconds"),
            tuple(copying),
        ),
        Table(
            "pixels",
            f"Accuracy on the test images after the last epoch; {_images(results)}. Seconds "
            f"are those of an epoch. {where}",
            ("pixels", *columns, "test accuracy", "error", "seconds"),
            tuple(pixels),
        ),
        Table(
            "search",
            "The search for the learning rate that is a method's own: the loss of the last 20 "
            "batches over the baseline when copying (less is better), the accuracy on training "
            "images held out when reading pixels; a dash where the training diverged.",
            ("task", "method", "learning rate", "loss over baseline or accuracy"),
            tuple(
                (s["task"], s["method"], s["rate"], s["value"]) for s in results.get("search", ())
            ),
        ),
    )
    return [table for table in tables if table.rows]


def figures_of(results: Mapping[str, Any]) -> list[Figure]:
    """The figure with a panel for each task."""

    def draw(canvas: "Canvas") -> None:
        tasks = _by_task(results)
        axes = canvas.subplots(1, len(tasks), squeeze=False)[0]
        methods = list(get_args(Method))
        for axis, (task, cells) in zip(axes, tasks.items(), strict=True):
            for cell in cells:
                rows = [row for row in cell["rows"] if row["loss"] is not None]
                label = cell["method"] if axis is axes[0] else None
                colour = f"C{methods.index(cell['method'])}"
                if cell["baseline"] is not None:
                    x = [row["step"] for row in rows]
                    y = [row["loss"] / cell["baseline"] for row in rows]
                    axis.semilogy(x, y, color=colour, label=label)
                    axis.axhline(SOLVED, color="#8c8c8c", linewidth=1, linestyle=":")
                    axis.set(xlabel="batches", ylabel="loss over baseline")
                else:
                    x = [row["step"] / cell["num_batches"] for row in rows]
                    axis.plot(x, [r["accuracy"] for r in rows], color=colour, label=label)
                    axis.set(xlabel="epochs", ylabel="test accuracy")
            axis.set_title(task.replace("-", ", T = "))
        canvas.legend(loc="outside lower center", ncols=len(methods))

    tasks = len(_by_task(results))
    caption = (
        "Loss of the copying task over that of a net without memory (dotted: solved), and "
        f"accuracy on test images of {_images(results)}, read pixel by pixel. "
        f"{_choice(results)}"
    )
    return [Figure("rnn", caption, draw, (2.0 + 2.6 * tasks, 3.6))] if tasks else []


def _by_task(results: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The cells that ran, by task."""
    found: dict[str, list[dict[str, Any]]] = {}
    for cell in results["cells"]:
        if not cell["missing"]:
            found.setdefault(cell["task"], []).append(cell)
    return found


def _choice(results: Mapping[str, Any]) -> str:
    return SEARCHED if results.get("search") else BY_HAND


def _images(results: Mapping[str, Any]) -> str:
    """The images in words; older results have no subsets and all pixels."""
    text: str = results["data"]
    if (num := results.get("images")) is not None:
        text += f", of which {num:,} are used"
    if (pool := results.get("pool", 1)) > 1:
        text += f"; {pool} x {pool} pixels are read as one"
    return text


def _said(cell: Mapping[str, Any]) -> str:
    """A clause of the verdict on one method and one task."""
    method = cell["method"]
    if cell["diverged"]:
        return f"{method} diverged"
    if cell["baseline"] is None:
        return f"{method} {cell['accuracy']:.1%}"
    end = f"{cell['over_baseline']:.2g} of the baseline"
    if cell["solved_at"] is None:
        return f"{method} does not solve it ({end})"
    solved = f"{method} solves it after {cell['solved_at']:,} batches"
    return f"{solved} and ends at {end}" if cell["over_baseline"] >= SOLVED else solved
