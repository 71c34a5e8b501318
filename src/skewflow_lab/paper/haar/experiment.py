"""How fast products of random rotations approach Haar measure (Sec. 9.9, Eq. 29)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from skewflow.geometry import haar
from skewflow.tournaments import block_sizes

from ...runs.experiment import Experiment, Figure, Table, Timing
from ...runs.run import Run
from ...runs.seeds import spawn
from ...runs.threads import one_thread
from .mixing import haar_mixing, haar_moments, largest_spacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

STATISTICS = ("E tr", "E tr^2", "E tr^4", "E largest spacing")
SIGMAS = 4.0
"""Standard errors within which a mean agrees with Haar's. A run has about a hundred comparisons, of
which few may fail by chance."""


@dataclass(frozen=True, kw_only=True)
class HaarConfig:
    """Random rotations from the identity."""

    d: int = 16
    """Rows and columns."""
    block_sizes: tuple[int, ...] = (2, 4, 8)
    """s: every step turns all blocks of a random partition. A single Givens rotation a step is
    always measured, too."""
    num_rotations: int = 320
    """Givens rotations of each product; a block of s rows counts s(s-1)/2."""
    num_records: int = 40
    """Number of measurements along a product."""
    num_samples: int = 20_000
    """Independent products."""
    seed: int = 0
    """Seed of the rotations."""


class Haar(Experiment[HaarConfig]):
    """One cell for each kind of step, and one for Haar measure itself."""

    name = "haar"
    title = "Random flows towards Haar measure"
    paper = (
        "Products of random Givens rotations tend to Haar measure; matchings turn all rows at once "
        "(Sec. 9.9, Eq. 29). The paper gives no number. It says Haar measure on O(d): rotations "
        "from the identity stay in SO(d), so that is what we compare with."
    )
    presets: Mapping[str, HaarConfig] = {
        "quick": HaarConfig(d=8, block_sizes=(2, 4), num_rotations=96, num_samples=2000),
        "paper": HaarConfig(),
    }

    def cells(self, config: HaarConfig) -> Sequence[str]:
        """Haar measure, a single rotation a step, and one name for each s."""
        return ["haar", "single", *(f"s={s}" for s in config.block_sizes)]

    @one_thread()
    def run_cell(self, config: HaarConfig, cell: str, run: Run) -> dict[str, Any]:
        """Draw the products; keep means and standard errors of the statistics."""
        generator = spawn(config.seed, cell)
        d, n = config.d, config.num_samples
        if cell == "haar":  # the largest spacing has no formula
            X = haar(d, special=True, batch=(n,), generator=generator, dtype=torch.float64)
            gaps = largest_spacing(X)
            error = gaps.std(correction=0).item() / math.sqrt(n)
            return {"spacing": gaps.mean().item(), "spacing_error": error}
        sizes: int | tuple[int, ...] = (
            (2, *[1] * (d - 2)) if cell == "single" else int(cell.removeprefix("s="))
        )
        a_step = sum(count * size * (size - 1) // 2 for size, count in block_sizes(d, sizes))
        num_steps = max(1, config.num_rotations // a_step)
        mixing = haar_mixing(
            d,
            sizes,
            num_steps=num_steps,
            num_samples=n,
            generator=generator,
            record_every=max(1, num_steps // config.num_records),
        )
        rows = [
            {
                "rotations": rotations,
                "values": [*moments, spacing],
                "errors": [*moment_errors, spacing_error],
            }
            for rotations, moments, moment_errors, spacing, spacing_error in zip(
                mixing.rotations.tolist(),
                mixing.moments.tolist(),
                mixing.moment_errors.tolist(),
                mixing.spacing.tolist(),
                mixing.spacing_error.tolist(),
                strict=True,
            )
        ]
        return {"rows": rows, "rotations_a_step": a_step}

    def summarise(self, config: HaarConfig, cells: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """For each kind of step the distances to Haar measure, and when they reach the noise."""
        exact = [*haar_moments(config.d).tolist(), cells["haar"]["spacing"]]
        exact_errors = [0.0, 0.0, 0.0, cells["haar"]["spacing_error"]]
        steps = {}
        for cell, result in cells.items():
            if cell == "haar":
                continue
            rows = []
            for row in result["rows"]:
                errors = [math.hypot(*e) for e in zip(row["errors"], exact_errors, strict=True)]
                distances = [abs(v - e) for v, e in zip(row["values"], exact, strict=True)]
                rows.append({**row, "distances": distances, "errors": errors})
            steps[cell] = {
                "rotations_a_step": result["rotations_a_step"],
                "rows": rows,
                "mixed": [_mixed(rows, n) for n in range(len(STATISTICS))],
            }
        return {"d": config.d, "num_samples": config.num_samples, "haar": exact, "steps": steps}

    def verdict(self, results: Mapping[str, Any]) -> str:
        """How many rotations each kind of step needs."""
        single, *others = results["steps"].items()
        needed = {name: _largest(step["mixed"]) for name, step in (single, *others)}
        counts = ", ".join(
            f"{'more than were made' if n is None else n} with {_label(name)}"
            for name, n in needed.items()
        )
        pairs = needed.get("s=2")
        compared = ""
        if pairs is not None and needed["single"] is not None:
            fewer = "fewer" if pairs < needed["single"] else "no fewer"
            compared = f" Matchings need {fewer} rotations than single ones."
        return (
            f"At d = {results['d']} the traces and spacings of {results['num_samples']:,} products "
            f"agree with Haar measure on SO(d) within noise after this many rotations: "
            f"{counts}.{compared}"
        )

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The tables of the rotations until the statistics are Haar's, and of the final values."""
        ends = [("Haar on SO(d)", None, *results["haar"])]
        for name, step in results["steps"].items():
            last = step["rows"][-1]
            ends.append((_label(name), last["rotations"], *last["values"]))
        n = f"{results['num_samples']:,}"
        return [
            Table(
                "rotations",
                f"Rotations until a mean over {n} products stays within {SIGMAS:g} standard errors "
                "of Haar's; a dash: not reached. They are read off at the measurements, so a "
                "number is the first multiple of that spacing. A block of s rows counts as "
                "s(s-1)/2 rotations. The paper gives none.",
                ("step", "rotations a step", *STATISTICS),
                tuple(
                    (_label(name), step["rotations_a_step"], *step["mixed"])
                    for name, step in results["steps"].items()
                ),
            ),
            Table(
                "ends",
                f"The means at the end. Haar's moments are exact (0, 1 and 3 for d > 4), its "
                f"spacing, in units of the mean one, is a mean over {n} Haar matrices.",
                ("step", "rotations", *STATISTICS),
                tuple(ends),
            ),
        ]

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figure of the four distances on logarithmic axes, with the noise dotted."""

        def draw(canvas: "Canvas") -> None:
            axes = canvas.subplots(2, 2, sharex=True).ravel()
            for n, (axis, title) in enumerate(zip(axes, STATISTICS, strict=True)):
                for m, (name, step) in enumerate(results["steps"].items()):
                    rotations = [row["rotations"] for row in step["rows"]]
                    distances = [row["distances"][n] for row in step["rows"]]
                    axis.semilogy(rotations, distances, ".-", color=f"C{m}", label=_label(name))
                noise = max(step["rows"][-1]["errors"][n] for step in results["steps"].values())
                axis.axhline(noise, color="C7", linestyle=":", label="one standard error")
                axis.set(title=title, ylim=(noise / 5, None))
            for axis in axes[2:]:
                axis.set_xlabel("rotations")
            canvas.supylabel("distance to Haar")
            canvas.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)

        caption = (
            f"Distance of four means to their values under Haar measure on SO({results['d']}), "
            "against the number of rotations; below the dotted line there is only noise."
        )
        return [Figure("haar", caption, draw, (7.6, 6.0))]


def _mixed(rows: Sequence[Mapping[str, Any]], statistic: int) -> int | None:
    """The number of rotations from which on a distance stays within its noise."""
    since = None
    for row in reversed(rows):
        if row["distances"][statistic] > SIGMAS * row["errors"][statistic]:
            break
        since = row["rotations"]
    return since


def _largest(values: Sequence[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return max(known) if len(known) == len(values) else None


def _label(name: str) -> str:
    return {"single": "single rotations", "s=2": "matchings"}.get(name, name.replace("=", " = "))
