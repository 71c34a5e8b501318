"""The error of random features against the number of rotations in their directions (Sec. 9.9)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from skewflow.problems import OrthogonalRandomFeatures
from skewflow.tournaments import block_sizes

from ..data import load_images
from ..runs.experiment import Experiment, Figure, Table, Timing
from ..runs.run import Run
from ..runs.seeds import spawn
from ..runs.threads import one_thread
from .haar.mixing import random_rotations

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

EXACT = {"haar": "Haar blocks", "gaussian": "independent Gaussians (RBFSampler)"}
"""Laws of directions that do not depend on a number of rotations, and their names in tables."""
LEVEL = 0.01
"""Probability that some test of a kind of step finds a difference although none exists."""


@dataclass(frozen=True, kw_only=True)
class RandomFeaturesConfig:
    """Features of pairs of scikit-learn's digits, 64 directions each."""

    block_sizes: tuple[int, ...] = (2, 4, 8)
    """s: every step turns all blocks of a random partition. A single Givens rotation a step is
    always measured, too."""
    num_rotations: int = 1024
    """Givens rotations of each product; a block of s rows counts s(s-1)/2."""
    pairs: int = 24
    """Pairs of images whose kernel is estimated."""
    num_samples: int = 2000
    """Independent sets of features."""
    seed: int = 0
    """Seed of the pairs and of the directions."""


class RandomFeatures(Experiment[RandomFeaturesConfig]):
    """One cell for each kind of directions."""

    name = "random-features"
    title = "Random features: products of rotations against Haar blocks"
    paper = (
        "The paper proposes products of random Givens matchings for random features (Sec. 9.9), "
        "and gives no numbers."
    )
    presets: Mapping[str, RandomFeaturesConfig] = {
        "ci": RandomFeaturesConfig(block_sizes=(2,), num_rotations=128, num_samples=100, pairs=4),
        "quick": RandomFeaturesConfig(num_rotations=512, num_samples=300),
        "paper": RandomFeaturesConfig(),
    }

    def cells(self, config: RandomFeaturesConfig) -> Sequence[str]:
        """Both exact laws, a single rotation a step, and one name for each s."""
        return [*EXACT, "single", *(f"s={s}" for s in config.block_sizes)]

    @one_thread()
    def run_cell(self, config: RandomFeaturesConfig, cell: str, run: Run) -> dict[str, Any]:
        """Draw the directions; record the mean squared errors and their standard errors."""
        x, y = _pairs(config)
        gamma = 1 / (x - y).square().sum(1).median().item()
        generator = spawn(config.seed, cell)
        n, d = config.num_samples, x.shape[1]
        if cell in EXACT:
            W = _drawn(cell, gamma, n, d, int(generator.initial_seed() % 2**31))
            return {
                "a_step": None,
                "rows": [{"rotations": None, **_errors(W, x, y, gamma, generator)}],
            }
        sizes: int | tuple[int, ...] = (
            (2, *[1] * (d - 2)) if cell == "single" else int(cell.removeprefix("s="))
        )
        a_step = sum(count * size * (size - 1) // 2 for size, count in block_sizes(d, sizes))
        every = max(1, d // 2 // a_step)
        num_steps = config.num_rotations // a_step
        X = torch.eye(d, dtype=torch.float64).repeat(n, 1, 1)
        rows = []
        for step in range(num_steps + 1):
            if step:
                X = random_rotations(X, sizes, generator=generator)
            if step % every == 0:
                # Lengths of Gaussian vectors: chi squared of d is gamma of shape d / 2, times 2.
                shape = torch.full((n, d, 1), d / 2, dtype=torch.float64)
                squares = 2 * torch._standard_gamma(shape, generator=generator)
                W = X * (2 * gamma * squares).sqrt()
                rows.append({"rotations": step * a_step, **_errors(W, x, y, gamma, generator)})
            run.progress((step + 1) / (num_steps + 1))
        return {"a_step": a_step, "rows": rows}

    def summarise(
        self, config: RandomFeaturesConfig, cells: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """The errors, and the number of rotations from which on they are those of Haar blocks."""
        exact = {name: cells[name]["rows"][0] for name in EXACT}
        steps = {}
        for name, cell in cells.items():
            if name in EXACT:
                continue
            tests = len(cell["rows"]) * (config.pairs + 1)
            rows = [
                {
                    **{key: row[key] for key in ("rotations", "rmse", "error", "phased")},
                    "p": min(1.0, tests * _least_p(row, exact["haar"])),
                }
                for row in cell["rows"]
            ]
            steps[name] = {"a_step": cell["a_step"], "rows": rows, "mixed": _mixed(rows)}
        return {
            "num_samples": config.num_samples,
            "pairs": config.pairs,
            "num_rotations": config.num_rotations,
            "exact": {
                name: {key: row[key] for key in ("rmse", "error", "phased")}
                for name, row in exact.items()
            },
            "steps": steps,
        }

    def verdict(self, results: Mapping[str, Any]) -> str:
        """How many rotations each kind of step needs, and the gain of Haar blocks."""
        counts = ", ".join(
            f"{_label(name)} after "
            + (
                f"more than {results['num_rotations']} rotations"
                if step["mixed"] is None
                else f"{step['mixed']} rotations ({step['mixed'] // step['a_step']} steps)"
            )
            for name, step in results["steps"].items()
        )
        haar, gaussian = (results["exact"][name] for name in EXACT)
        gain = 1 - haar["rmse"] / gaussian["rmse"]
        sure = abs(haar["rmse"] - gaussian["rmse"]) > 4 * math.hypot(
            haar["error"], gaussian["error"]
        )
        word = ("smaller" if gain > 0 else "larger") if sure else "no different"
        percent = f" by {abs(gain):.0%}" if sure else ""
        return (
            f"The kernel error of Haar blocks, {haar['rmse']:.4f}, is {word}{percent} than that of "
            f"independent Gaussians, {gaussian['rmse']:.4f}. By the errors of "
            f"{results['num_samples']:,} sets of features on {results['pairs']} pairs, "
            f"products cannot be distinguished from Haar blocks: {counts}."
        )

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The tables of the sufficient numbers of rotations, and of the errors."""
        steps, exact = results["steps"], results["exact"]
        matching = next((s["a_step"] for s in steps.values() if s["a_step"] > 1), 1)
        errors = [
            (EXACT[name], None, row["rmse"], row["error"], row["phased"], None)
            for name, row in exact.items()
        ]
        for name, step in steps.items():
            wanted = {matching * 2**k for k in range(20)} | {0, step["mixed"]}
            errors += [
                (_label(name), *(row[k] for k in ("rotations", "rmse", "error", "phased", "p")))
                for row in step["rows"]
                if step["a_step"] > matching
                or row["rotations"] in wanted
                or row is step["rows"][-1]
            ]
        return [
            Table(
                "rotations",
                "Rotations from which on no test distinguishes a product from Haar blocks, and the "
                f"steps that make them; a dash: more than {results['num_rotations']:,}. At each "
                "measurement the mean squared error of every pair, and of all, is compared with "
                "that of Haar "
                f"blocks by its standard errors over {results['num_samples']:,} sets of features; "
                f"all tests of a row together have the level {LEVEL:.0%} (Bonferroni). A block of "
                "s rows counts as s(s-1)/2 rotations.",
                ("step", "rotations a step", "rotations", "steps"),
                tuple(
                    (
                        _label(name),
                        step["a_step"],
                        step["mixed"],
                        None if step["mixed"] is None else step["mixed"] // step["a_step"],
                    )
                    for name, step in steps.items()
                ),
            ),
            Table(
                "errors",
                "Root mean squared error of the Gaussian kernel with 64 features: averaged over "
                "the phases, as with pairs of sine and cosine, and with random phases, as the "
                "transformers return it. p is that of the tests together.",
                ("directions", "rotations", "RMSE", "standard error", "with phases", "p"),
                tuple(errors),
            ),
        ]

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figure of the errors against the number of rotations."""

        def draw(canvas: "Canvas") -> None:
            axis = canvas.subplots()
            for n, (name, step) in enumerate(results["steps"].items()):
                rows = [row for row in step["rows"] if row["rotations"]]
                rotations = [row["rotations"] for row in rows]
                axis.loglog(rotations, [row["rmse"] for row in rows], ".-", label=_label(name))
                if step["mixed"]:
                    reached = next(r for r in rows if r["rotations"] == step["mixed"])
                    axis.plot(step["mixed"], reached["rmse"], "o", color=f"C{n}", ms=9, mfc="none")
            for style, (name, row) in zip(("-", ":"), results["exact"].items(), strict=True):
                axis.axhline(row["rmse"], color="black", linestyle=style, lw=1, label=EXACT[name])
            axis.set_xlabel("Givens rotations")
            axis.set_ylabel("error of the kernel (RMSE)")
            axis.legend()

        caption = (
            "Error of the kernel against the number of rotations in the directions. A circle: from "
            "there on the tests find no difference from Haar blocks."
        )
        return [Figure("random-features", caption, draw, (7.2, 4.6))]


def _pairs(config: RandomFeaturesConfig) -> tuple[Float[Tensor, "p d"], Float[Tensor, "p d"]]:
    """Random pairs of different digits, as rows of 64 numbers between 0 and 1."""
    pixels = load_images("digits").pixels.flatten(1).double()
    order = torch.randperm(len(pixels), generator=spawn(config.seed, "pairs"))
    chosen = pixels[order[: 2 * config.pairs]]
    return chosen[: config.pairs], chosen[config.pairs :]


def _drawn(cell: str, gamma: float, n: int, d: int, seed: int) -> Float[Tensor, "n d d"]:
    """The directions, drawn as by the transformers, one in each row."""
    from sklearn.kernel_approximation import RBFSampler

    kind = OrthogonalRandomFeatures if cell == "haar" else RBFSampler
    points = np.zeros((1, d))
    W = [
        kind(gamma=gamma, n_components=d, random_state=(seed + i) % 2**31)
        .fit(points)
        .random_weights_.T
        for i in range(n)
    ]
    return torch.from_numpy(np.stack(W))


def _errors(
    W: Float[Tensor, "n f d"],
    x: Float[Tensor, "p d"],
    y: Float[Tensor, "p d"],
    gamma: float,
    generator: torch.Generator,
) -> dict[str, Any]:
    r"""Errors of $2/f \sum_i \cos(w_i x + b_i) \cos(w_i y + b_i)$, whose mean over b is smooth."""
    n, f, _ = W.shape
    kernel = (-gamma * (x - y).square().sum(1)).exp()
    smooth = (W @ (x - y).mT).cos().mean(1)
    b = 2 * math.pi * torch.rand(n, f, 1, generator=generator, dtype=W.dtype)
    rest = (W @ (x + y).mT + 2 * b).cos().mean(1)
    squares = (smooth - kernel).square()
    every = torch.cat([squares, squares.mean(1, keepdim=True)], dim=1)  # pairs, then their mean
    means, errors = every.mean(0), every.std(0) / math.sqrt(n)
    rmse = means[-1].sqrt().item()
    return {
        "rmse": rmse,
        "error": errors[-1].item() / (2 * rmse),
        "phased": (smooth + rest - kernel).square().mean().sqrt().item(),
        "means": means.tolist(),
        "errors": errors.tolist(),
    }


def _least_p(row: Mapping[str, Any], exact: Mapping[str, Any]) -> float:
    """The least p-value of two-sided tests that the mean squared errors are equal."""
    columns = (row["means"], exact["means"], row["errors"], exact["errors"])
    return min(
        math.erfc(abs(a - b) / math.hypot(e, f) / math.sqrt(2))
        for a, b, e, f in zip(*columns, strict=True)
    )


def _mixed(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """The number of rotations from which on no test distinguishes the errors."""
    since = None
    for row in reversed(rows):
        if row["p"] < LEVEL:
            break
        since = row["rotations"]
    return since


def _label(name: str) -> str:
    return {"single": "single rotations", "s=2": "matchings"}.get(name, name.replace("=", " = "))
