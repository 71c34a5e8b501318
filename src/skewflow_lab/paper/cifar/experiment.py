"""PlainNets on CIFAR-10 with orthogonal convolutions (Sec. 6.2, Fig. 5; Sec. 9.1)."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...runs.environment import check_device
from ...runs.experiment import Experiment, Figure, Table, Timing
from ...runs.files import RunError
from ...runs.run import Run
from ...runs.threads import one_thread
from .report import draw_curves, table_of_claims, table_of_methods, tables_of_series, verdict_of
from .series import first_steps
from .training import CifarConfig, Setting, chosen, grid_of, train_all

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

SOURCES = {"cifar10": "CIFAR-10", "digits": "scikit-learn's digits (instead of CIFAR-10)"}


class Cifar(Experiment[CifarConfig]):
    """A cell for the search, then one for each seed; all methods are trained together in a cell."""

    name = "cifar"
    title = "PlainNet on CIFAR-10 with orthogonal convolutions"
    paper = (
        "Orthogonal optimisation improves the training of PlainNet-110 over SGD with momentum "
        "(about 66% test accuracy), vanilla Adam is challenging; s = 2 is too noisy, s = d / log d "
        "is competitive with the exact method (Sec. 6.2), s = log d and sqrt d did not train "
        "properly, and neither did exact steps with a Taylor series of 100 terms, 200 were "
        "acceptable (Sec. 9.1). The figure's values are not in the text."
    )
    preset_help = '"quick" takes half a minute, "cpu" half an hour; "paper" is for a GPU.'
    presets: Mapping[str, CifarConfig] = {
        "quick": CifarConfig(
            depth=8, width=4, batch=32, epochs=3, search_epochs=1, images=640, save_every=1,
            precision="float32", device="cpu",
        ),
        # A search of 44 settings x 2 epochs and 3 seeds x 14 networks x 9 epochs: 1.4 million
        # images at 0.9 ms; a minute for the series in PlainNet-110.
        "cpu": CifarConfig(
            methods=(
                "vanilla", "adam", "ortinit", "exact", "s=2", "s=log", "s=sqrt", "s=r",
                "taylor20", "taylor100", "taylor200",
            ),
            unshifted=("vanilla", "exact", "s=r"),
            depth=20, width=8, batch=32, epochs=9, search_epochs=2, images=3_000,
            test_images=500, series_depth=110, lrs=(0.02, 0.05, 0.1, 0.5),
            adam_lrs=(3e-4, 1e-3, 3e-3, 1e-2), scales=(0.01, 0.1, 1.0, 10.0), save_every=1,
            seeds=(0, 1, 2), precision="float32", device="cpu",
        ),
        "paper": CifarConfig(),
    }  # fmt: skip

    def cells(self, config: CifarConfig) -> Sequence[str]:
        """The first steps with a series, the search, and the seeds."""
        _check(config)
        series = [] if config.series_depth is None else ["series"]
        return [*series, "search", *(f"seed-{seed}" for seed in config.seeds)]

    @one_thread()
    def run_cell(self, config: CifarConfig, cell: str, run: Run) -> dict[str, Any]:
        """Train all settings of the cell together."""
        if cell == "series":
            return first_steps(config)
        settings = grid_of(config)
        seed, epochs = config.seeds[0], config.search_epochs
        if cell != "search":
            found = run.result("search")
            assert found is not None  # the cell before this one
            settings = chosen(config, found["best"])
            seed, epochs = int(cell.removeprefix("seed-")), config.epochs
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            result = train_all(config, settings, seed, epochs, cell, run)
        if cell == "search":
            result["best"] = best_of(settings, result["curves"])
        return result

    def summarise(self, config: CifarConfig, cells: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """The search, and for each method its curves and final accuracies over the seeds."""
        search = cells["search"]
        seeds = [cells[f"seed-{seed}"] for seed in config.seeds]
        methods = {}
        for setting in chosen(config, search["best"]):
            curves = [cell["curves"][setting.name] for cell in seeds]
            errors = [cell["errors"][setting.name] for cell in seeds]
            methods[setting.label] = {
                "setting": setting.name,
                "curves": curves,
                "final": [curve[-1]["test"] for curve in curves],
                # Accuracies on a part of the test images are not comparable with those on all.
                "best": None
                if config.test_images is not None
                else [max(row["test"] for row in curve) for curve in curves],
                "train": [curve[-1]["train"] for curve in curves],
                "error": None if None in errors else max(errors),
                "norms": [c["norms"][setting.name] for c in seeds if setting.name in c["norms"]],
            }
        return {
            "depth": config.depth,
            "data": f"{seeds[0]['images']:,} training images of {SOURCES[config.data]}",
            "epochs": config.epochs,
            "shift": config.shift,
            "search": {name: curve[-1]["test"] for name, curve in search["curves"].items()},
            "series": cells.get("series"),
            "methods": methods,
        }

    def verdict(self, results: Mapping[str, Any]) -> str:
        """The claims of the paper that the numbers support."""
        return verdict_of(results)

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The methods, the claims, and the search."""
        rows = tuple((name, 100 * value) for name, value in results["search"].items())
        caption = "Accuracy in percent on held-out training images, at the end of the search."
        return [
            table_of_methods(results, timing),
            table_of_claims(results),
            *tables_of_series(results),
            Table("search", caption, ("setting", "accuracy"), rows),
        ]

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figure of test accuracy (bold) and training accuracy (thin) against the epoch."""

        def draw(canvas: "Canvas") -> None:
            draw_curves(canvas, results)

        caption = (
            f"PlainNet-{results['depth']} on {results['data']}: test accuracy (bold) and training "
            "accuracy (thin), the mean over seeds."
        )
        return [Figure("curves", caption, draw)]


def best_of(settings: Sequence[Setting], curves: Mapping[str, Any]) -> dict[str, float]:
    """For each method the value with the highest accuracy on the held-out images."""
    best: dict[str, Setting] = {}
    for setting in settings:
        held = best.setdefault(setting.label, setting)
        if curves[setting.name][-1]["test"] > curves[held.name][-1]["test"]:
            best[setting.label] = setting
    return {label: setting.value for label, setting in best.items()}


def _check(config: CifarConfig) -> None:
    """Refuse settings that cannot run, before anything is trained."""
    check_device(config.device)
    for flag, depth in (("depth", config.depth), ("series-depth", config.series_depth)):
        if depth is not None and (depth < 5 or (depth - 2) % 3):
            raise RunError(f"--{flag} must be 3 n + 2 with n >= 1: got {depth}.")
    for name in ("methods", "seeds", "lrs", "adam_lrs", "scales"):
        values = getattr(config, name)
        if not values or len(set(values)) != len(values):
            flag = name.replace("_", "-")
            raise RunError(f"--{flag} must list one value or more, each once: got {values}.")
    if len(set(config.unshifted)) != len(config.unshifted):
        raise RunError(f"--unshifted must list each value once: got {config.unshifted}.")
    series = [m for m in (*config.methods, *config.unshifted) if m.startswith("taylor")]
    if series and "exact" not in config.methods:
        raise RunError(
            f"--methods must include exact, whose setting a series takes: got {', '.join(series)}."
        )
    if config.series_depth is not None and not series:
        raise RunError(f"--series-depth needs a series in --methods: got {config.methods}.")
    if series and config.device == "cuda":
        raise RunError(
            f"--methods must be without a series on a GPU: got {', '.join(series)}, whose steps "
            "cannot be captured in a CUDA graph. Use --device cpu."
        )
    for name in ("width", "batch", "epochs", "search_epochs", "save_every", "series_steps"):
        if getattr(config, name) < 1:
            flag = name.replace("_", "-")
            raise RunError(f"--{flag} must be at least 1: got {getattr(config, name)}.")
    for name in ("images", "test_images"):
        number = getattr(config, name)
        if number is not None and number < 1:
            raise RunError(f"--{name.replace('_', '-')} must be positive: got {number}.")
    rates = {"lr": (config.lr,), "lrs": config.lrs, "scales": config.scales}
    for name, values in {**rates, "adam-lrs": config.adam_lrs}.items():
        for rate in values:
            if not 0 < rate < math.inf:
                raise RunError(f"--{name} must be above 0 and finite: got {rate}.")
