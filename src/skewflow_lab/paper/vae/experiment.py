"""Variational autoencoders whose posterior is refined by flows (Sec. 1; van den Berg et al.)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, get_args

from ...data import SOURCES, Digits, default_images, load_digits_part, load_images
from ...runs.experiment import Experiment, Figure, Table, Timing
from ...runs.files import RunError
from ...runs.run import Run
from ...runs.threads import one_thread
from ..statistics import spread
from .posteriors import Method
from .training import Training

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

METHODS: dict[Method, str] = {
    "none": "no flow",
    "planar": "planar",
    "iaf": "inverse autoregressive",
    "householder": "Sylvester, reflections",
    "flowsgd": "Sylvester, shared, FlowSGD",
    "flowadam": "Sylvester, shared, FlowAdam",
    "amortised": "Sylvester, amortised",
}
ANCHORS = {"none": 86.55, "planar": 86.06, "iaf": 84.20, "amortised": 83.32}
"""-ELBO on MNIST of van den Berg et al., Table 1, with convolutional nets and long training."""
OURS: tuple[Method, ...] = ("flowsgd", "flowadam")


@dataclass(frozen=True, kw_only=True)
class VaeConfig:
    """Adam on everything but shared orthogonal factors, which FlowSGD or FlowAdam steps."""

    latent: int = 16
    """Entries of z."""
    hidden: int = 300
    """Units of each hidden layer."""
    rank: int = 16
    """Columns of the factor of a Sylvester flow."""
    num_flows: int = 4
    """Flows, one behind the other."""
    num_planar: int = 16
    """Planar flows; so many take as long as the Sylvester flows, and are as many as in the paper of
    van den Berg et al."""
    lr: float = 1e-3
    """Learning rate of all parameters of all methods, orthogonal factors too, which falls linearly
    to 0 in the second half. It was searched for none of them."""
    batch: int = 100
    """Images in a step."""
    epochs: int = 50
    """Passes over the training images."""
    warm_up: int = 10
    """Epochs in which the weight of the divergence grows to 1."""
    num_images: int = 60_000
    """Training images, at most."""
    importance: tuple[int, int] = (200, 500)
    """Samples for each image, and images, of the importance-weighted log-likelihood."""
    methods: tuple[Method, ...] = tuple(METHODS)
    """Those that are compared."""
    data: Digits = "mnist"
    """"mnist" or "digits"."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One training of each method each."""


class Vae(Experiment[VaeConfig]):
    """A cell for each method and seed."""

    name = "vae"
    title = "Variational autoencoders: flows that refine the posterior"
    paper = (
        "Normalising flows with orthogonal factors are named as a use of ST(d, k) (Sec. 1); the "
        "paper trains none. The flows are those of van den Berg et al., UAI 2018, who report a "
        "-ELBO on MNIST of 86.55 without a flow, 86.06 planar, 84.20 inverse autoregressive and "
        "83.32 orthogonal Sylvester, with convolutional nets and long training."
    )
    presets: Mapping[str, VaeConfig] = {
        "ci": VaeConfig(
            latent=6,
            hidden=24,
            rank=4,
            num_flows=2,
            num_planar=3,
            epochs=2,
            warm_up=1,
            num_images=400,
            importance=(5, 10),
            data="digits",
            seeds=(0, 1),
        ),
        "quick": VaeConfig(
            hidden=100,
            epochs=4,
            warm_up=2,
            num_images=3000,
            importance=(20, 50),
            data=default_images(),
            seeds=(0,),
        ),
        "paper": VaeConfig(),
    }
    preset_help = '"ci" takes seconds, "quick" a minute, "paper" two hours with --processes 2.'
    parts = frozenset({"methods", "seeds"})
    independent = True

    def cells(self, config: VaeConfig) -> Sequence[str]:
        """Seed by seed, so that a stopped run has compared all methods on some."""
        _check(config)
        return [f"{m},seed={seed}" for seed in config.seeds for m in config.methods]

    @one_thread()
    def run_cell(self, config: VaeConfig, cell: str, run: Run) -> dict[str, Any]:
        """One training."""
        method, _, seed = cell.partition(",seed=")
        digits = config.data == "digits"
        train, test = (
            (load_digits_part(part) if digits else load_images("mnist", part)).pixels.flatten(1)
            for part in ("train", "test")
        )
        training = Training(
            train[: config.num_images],
            test,
            method=method,  # type: ignore[arg-type] # a word of the cell's name
            latent=config.latent,
            hidden=config.hidden,
            rank=config.rank,
            num_flows=config.num_flows,
            num_planar=config.num_planar,
            lr=config.lr,
            batch=config.batch,
            epochs=config.epochs,
            warm_up=config.warm_up,
            seed=int(seed),
        )
        if (state := run.load(cell)) is not None:
            training.load_state_dict(state)
        while len(training.rows) < config.epochs:
            row = training.epoch()
            run.metric(cell, **row)
            run.save(cell, training.state_dict())
            run.progress(row["epoch"] / config.epochs)
        run.time(cell, "seconds per epoch", median(training.seconds))
        return {
            "rows": training.rows,
            "nll": training.neg_log_likelihood(*config.importance),
            "parameters": sum(p.numel() for p in training.model.parameters()),
            "pictures": training.pictures(),
        }

    def summarise(self, config: VaeConfig, cells: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """For each method the mean and spread over the seeds."""
        methods = {}
        for method in config.methods:
            names = [f"{method},seed={seed}" for seed in config.seeds]
            runs = [cells[name] for name in names]
            errors = [run["rows"][-1]["error"] for run in runs]
            methods[method] = {
                "neg_elbo": spread([run["rows"][-1]["neg_elbo"] for run in runs]),
                "train": spread([run["rows"][-1]["train"] for run in runs]),
                "nll": spread([run["nll"] for run in runs]),
                "parameters": runs[0]["parameters"],
                "error": max(errors) if errors[0] is not None else None,
                "curve": [
                    sum(run["rows"][t]["neg_elbo"] for run in runs) / len(runs)
                    for t in range(config.epochs)
                ],
                "pictures": runs[0]["pictures"],
                "cells": names,
            }
        return {
            "data": SOURCES[config.data].partition(",")[0],
            "epochs": config.epochs,
            "num_seeds": len(config.seeds),
            "methods": methods,
        }

    def verdict(self, results: Mapping[str, Any]) -> str:
        """Whether a shared factor beats no flow and planar ones, and keeps up with reflections."""
        methods = results["methods"]
        ours = [m for m in OURS if m in methods]
        if not ours:
            return "No shared orthogonal factor was trained."
        best = min(ours, key=lambda m: methods[m]["neg_elbo"]["mean"])
        said = [
            f"{METHODS[other]} {methods[other]['neg_elbo']['mean']:.2f} "
            f"({_compared(methods[best]['neg_elbo'], methods[other]['neg_elbo'])})"
            for other in METHODS
            if other in methods and other != best
        ]
        return (
            f"After {results['epochs']} epochs on {results['data']}, {results['num_seeds']} seeds: "
            f"{METHODS[best]} reaches a -ELBO of {methods[best]['neg_elbo']['mean']:.2f} nats, "
            f"against {', '.join(said) or 'nothing'}; its factors are orthogonal to "
            f"{methods[best]['error']:.0e}."
        )

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """One row a method."""
        rows = []
        for method, row in results["methods"].items():
            seconds = [t for c in row["cells"] if (t := timing.get(c, {}).get("seconds per epoch"))]
            rows.append(
                (
                    METHODS[method],
                    row["neg_elbo"]["mean"],
                    row["neg_elbo"]["sd"],
                    row["nll"]["mean"],
                    row["train"]["mean"],
                    row["parameters"],
                    row["error"],
                    median(seconds) if seconds else None,
                    ANCHORS.get(method),
                )
            )
        columns = (
            "posterior", "-ELBO", "± (seeds)", "-log p(x)", "-ELBO train", "parameters",
            "orthogonality error", "s an epoch", "-ELBO, van den Berg et al.",
        )  # fmt: skip
        caption = (
            "Nats on the test images; -log p(x) by importance weights on the first of them. The "
            "error is that of the flows' factors. Seconds are of one thread. The last column is of "
            "other, convolutional nets and longer training."
        )
        return [Table("vae", caption, columns, tuple(rows))]

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """Curves, and pictures of the first seed."""
        methods = results["methods"]

        def curves(canvas: "Canvas") -> None:
            axes = canvas.subplots()
            for method, row in methods.items():
                axes.plot(range(1, len(row["curve"]) + 1), row["curve"], label=METHODS[method])
            axes.set(xlabel="epoch", ylabel="-ELBO of the test images, nats")
            axes.legend()

        def pictures(canvas: "Canvas") -> None:
            kinds = ("images", "reconstructions", "samples")
            axes = canvas.subplots(len(methods), len(kinds), squeeze=False)
            for line, (method, row) in zip(axes, methods.items(), strict=True):
                for place, kind in zip(line, kinds, strict=True):
                    place.imshow(_strip(row["pictures"][kind]), cmap="gray_r", vmin=0, vmax=255)
                    place.set(xticks=[], yticks=[])
                line[0].set_ylabel(METHODS[method], rotation=0, ha="right", va="center", size=7)
            for place, kind in zip(axes[0], kinds, strict=True):
                place.set_title(kind, size=8)

        return [
            Figure("vae", "-ELBO of the test images; means over the seeds.", curves),
            Figure(
                "pictures",
                "Test images, their reconstructions, and samples, of the first seed.",
                pictures,
                (9.0, 0.6 * len(methods) + 0.6),
            ),
        ]


def _strip(images: Sequence[Sequence[int]]) -> list[list[int]]:
    """Square images beside each other."""
    side = round(len(images[0]) ** 0.5)
    return [
        [value for image in images for value in image[r * side : (r + 1) * side]]
        for r in range(side)
    ]


def _compared(ours: Mapping[str, float], theirs: Mapping[str, float]) -> str:
    """Whether ours is below, by more than the seeds' spread."""
    gap, noise = theirs["mean"] - ours["mean"], (ours["sd"] or 0.0) + (theirs["sd"] or 0.0)
    if abs(gap) <= noise:
        return "no difference beyond the seeds' spread"
    return f"{abs(gap):.2f} {'more' if gap > 0 else 'less'}"


def _check(config: VaeConfig) -> None:
    names = ("latent", "hidden", "rank", "num_flows", "num_planar", "batch", "epochs", "num_images")
    for name in names:
        if getattr(config, name) < 1:
            raise RunError(f"`{name}` must be at least 1: got {getattr(config, name)}.")
    if config.rank > config.latent:
        raise RunError(
            f"`rank` must be at most latent={config.latent}: got {config.rank}; so many columns of "
            "that length can be orthonormal."
        )
    if min(config.importance) < 1:
        raise RunError(f"`importance` must hold positive numbers: got {config.importance}.")
    for name in ("seeds", "methods"):
        if not getattr(config, name):
            raise RunError(f"`{name}` must hold at least one value: got none.")
    unknown = set(config.methods) - set(get_args(Method))
    if unknown:
        raise RunError(f"`methods` must be some of {', '.join(METHODS)}: got {unknown}.")
