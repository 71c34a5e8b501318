"""PlainNet-110 on CIFAR-10 with orthogonal convolutions (Sec. 6.2, Fig. 5)."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from ..data.colour import Colours, ColourSet, default_colours, load_colours
from ..environment import check_device
from ..experiment import Experiment, Figure, Table, Timing
from ..files import RunError
from ..lanes import Lane, Precision, SideBySide
from ..methods import Method, largest_error, make_optimizers, rate_factor
from ..plainnet import PlainNet
from ..run import Run
from ..threads import one_thread
from .cifar_report import draw_curves, table_of_methods, verdict_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

Trained = Literal["vanilla", "ortinit", "exact", "s=2", "s=r"]
"""The paper's methods; "ortinit" is vanilla from the orthogonal weights that the others start from.
"""

Curve = list[dict[str, float | None]]
SOURCES = {"cifar10": "CIFAR-10", "digits": "scikit-learn's digits (in the place of CIFAR-10)"}


@dataclass(frozen=True, kw_only=True)
class CifarConfig:
    """A deep plain network, trained by the paper's methods side by side on the same batches.

    Every method is searched: vanilla and ortinit on `lrs`, the others on `scales`, on training
    images of which a tenth is held out; the best setting goes on with all.

    Every batch norm begins with the bias `shift`. With 0, torch's, half of the units of a layer are
    cut and gradients grow in every layer: the first one's are more than 1e4 times the last one's,
    and rounding grows alike. With 1.25 they are of one size.
    """

    methods: tuple[Trained, ...] = ("vanilla", "ortinit", "exact", "s=2", "s=r")
    """What is compared."""
    depth: int = 110
    """Layers: 3 n + 2."""
    width: int = 16
    """Channels of the first stage."""
    batch: int = 128
    """Images in a batch."""
    epochs: int = 100
    """Of the runs that are reported; learning rates drop tenfold at 3/9, 6/9 and 8/9 of them."""
    search_epochs: int = 3
    """Of each setting of the search, without drops."""
    shift: float = 1.25
    """Bias of every batch norm at the start."""
    lr: float = 0.1
    """Learning rate of the weights that are not orthogonal (the paper's baseline)."""
    lrs: tuple[float, ...] = (0.05, 0.1, 0.5)
    """Searched for vanilla and ortinit (the paper's grid)."""
    scales: tuple[float, ...] = (0.1, 1.0, 10.0)
    """Searched for the others: FlowSGD's learning rate over `lr` (the paper's grid)."""
    images: int | None = None
    """Train on so many images only; on all when omitted."""
    data: Colours = field(default_factory=default_colours)
    """"cifar10" or "digits"."""
    precision: Precision = "bf16" if torch.cuda.is_available() else "float32"
    """Of the products in the network; weights and optimisers are float32."""
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    """Where everything is."""
    save_every: int = 5
    """Epochs between two checkpoints."""
    seeds: tuple[int, ...] = (0,)
    """One run of every method each."""


@dataclass(frozen=True)
class Setting:
    """One lane: a method, with the number its grid varies."""

    method: Trained
    value: float

    @property
    def name(self) -> str:
        """Of its curve."""
        return f"{self.method} {'lr' if self.vanilla else 'scale'} {self.value:g}"

    @property
    def vanilla(self) -> bool:
        """All weights are stepped by SGD."""
        return self.method in ("vanilla", "ortinit")


class Cifar(Experiment[CifarConfig]):
    """A cell for the search, then one for each seed; all methods train in it side by side."""

    name = "cifar"
    title = "PlainNet-110 on CIFAR-10 with orthogonal convolutions"
    paper = (
        "Orthogonal optimisation improves the training of PlainNet-110 over SGD with momentum "
        "(about 66% test accuracy); s = 2 is too noisy, s = d / ln d is competitive with the exact "
        "method (Sec. 6.2). The figure's values are not in the text."
    )
    preset_help = '"quick" takes half a minute; "paper" is for a GPU.'
    presets: Mapping[str, CifarConfig] = {
        "quick": CifarConfig(
            depth=8, width=4, batch=32, epochs=3, search_epochs=1, images=640, save_every=1,
            precision="float32", device="cpu",
        ),
        "paper": CifarConfig(),
    }  # fmt: skip

    def cells(self, config: CifarConfig) -> Sequence[str]:
        """The search and the seeds."""
        _check(config)
        return ["search", *(f"seed-{seed}" for seed in config.seeds)]

    @one_thread()
    def run_cell(self, config: CifarConfig, cell: str, run: Run) -> dict[str, Any]:
        """Train all settings of the cell side by side."""
        train, test = _images(config, held_out=cell == "search")
        if cell == "search":
            settings = [
                Setting(method, value)
                for method in config.methods
                for value in (config.lrs if Setting(method, 0).vanilla else config.scales)
            ]
            seed, epochs = config.seeds[0], config.search_epochs
        else:
            found = run.result("search")
            assert found is not None  # the cell before this one
            settings = [Setting(method, found["best"][method]) for method in config.methods]
            seed, epochs = int(cell.removeprefix("seed-")), config.epochs
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            curves, errors = _train(config, settings, seed, epochs, train, test, cell, run)
        result: dict[str, Any] = {"curves": curves, "errors": errors, "images": len(train)}
        if cell == "search":
            result["best"] = _best(settings, curves)
        return result

    def summarise(self, config: CifarConfig, cells: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """The search, and for each method its curves and final accuracies over the seeds."""
        search = cells["search"]
        seeds = [cell for name, cell in cells.items() if name != "search"]
        methods = {}
        for method in config.methods:
            setting = Setting(method, search["best"][method])
            curves = [cell["curves"][setting.name] for cell in seeds]
            final = [curve[-1]["test"] for curve in curves]
            methods[method] = {
                "setting": setting.name,
                "curves": curves,
                "final": final,
                "best": [max(row["test"] for row in curve) for curve in curves],
                "train": [curve[-1]["train"] for curve in curves],
                "error": max(cell["errors"][setting.name] for cell in seeds),
            }
        tried = {name: curve[-1]["test"] for name, curve in search["curves"].items()}
        return {
            "depth": config.depth,
            "data": f"{seeds[0]['images']:,} training images of {SOURCES[config.data]}",
            "epochs": config.epochs,
            "shift": config.shift,
            "search": tried,
            "methods": methods,
        }

    def verdict(self, results: Mapping[str, Any]) -> str:
        """Whether the paper's order of the methods is found."""
        return verdict_of(results)

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The methods, and the search."""
        rows = tuple((name, 100 * value) for name, value in results["search"].items())
        caption = "Accuracy in percent on held-out training images, at the end of the search."
        return [
            table_of_methods(results, timing),
            Table("search", caption, ("setting", "accuracy"), rows),
        ]

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """Test accuracy, and thin the training accuracy, against the epoch."""

        def draw(canvas: "Canvas") -> None:
            draw_curves(canvas, results)

        caption = (
            f"PlainNet-{results['depth']} on {results['data']}: test accuracy (bold) and training "
            "accuracy (thin), the mean over seeds."
        )
        return [Figure("curves", caption, draw)]


def _check(config: CifarConfig) -> None:
    """Refuse what cannot run, before the first minute is spent."""
    check_device(config.device)
    if config.depth < 5 or (config.depth - 2) % 3:
        raise RunError(f"--depth must be 3 n + 2 with n >= 1: got {config.depth}.")
    for name in ("methods", "seeds", "lrs", "scales"):
        values = getattr(config, name)
        if not values or len(set(values)) != len(values):
            raise RunError(f"--{name} must hold values, each once: got {values}.")
    for name in ("width", "batch", "epochs", "search_epochs", "save_every"):
        if getattr(config, name) < 1:
            flag = name.replace("_", "-")
            raise RunError(f"--{flag} must be at least 1: got {getattr(config, name)}.")
    if config.images is not None and config.images < 1:
        raise RunError(f"--images must be positive: got {config.images}.")
    for name, rates in (("lr", (config.lr,)), ("lrs", config.lrs), ("scales", config.scales)):
        for rate in rates:
            if not 0 < rate < math.inf:
                raise RunError(f"--{name} must be above 0 and finite: got {rate}.")


def _images(config: CifarConfig, held_out: bool) -> tuple[ColourSet, ColourSet]:
    """Training and test images; in the search a tenth of the training images is the test."""
    device = torch.device(config.device)
    pixels, labels = load_colours(config.data, "train")
    pixels, labels = pixels[: config.images], labels[: config.images]
    if config.batch > 0.9 * len(labels):
        raise RunError(
            f"--batch must be at most nine tenths of the {len(labels)} training images, the rest "
            f"is held out in the search: got {config.batch}."
        )
    if held_out:
        n = len(labels) - len(labels) // 10
        train = ColourSet.of(pixels[:n], labels[:n], None, device)
        return train, ColourSet.of(pixels[n:], labels[n:], train, device)
    train = ColourSet.of(pixels, labels, None, device)
    return train, ColourSet.of(*load_colours(config.data, "test"), train, device)


def _lane(config: CifarConfig, setting: Setting, seed: int) -> Lane:
    with torch.random.fork_rng(devices=[]):  # the same start for all that share it
        torch.manual_seed(seed)
        model = PlainNet(config.depth, config.width, shift=config.shift)
        if setting.method == "vanilla":
            for module in model.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    on_cuda = config.device == "cuda"
    layout = torch.channels_last if on_cuda else torch.contiguous_format
    model = model.to(config.device, memory_format=layout)  # type: ignore[call-overload]
    method: Method = "vanilla" if setting.vanilla else setting.method  # type: ignore[assignment]
    optimizers = make_optimizers(
        model,
        method,
        lr=setting.value if setting.vanilla else config.lr,
        orthogonal_lr=config.lr * setting.value,
        seed=seed,
        guard_every=1 if on_cuda else 256,
    )
    return Lane(model, optimizers, precision=config.precision)


def _train(
    config: CifarConfig,
    settings: Sequence[Setting],
    seed: int,
    epochs: int,
    train: ColourSet,
    test: ColourSet,
    cell: str,
    run: Run,
) -> tuple[dict[str, Curve], dict[str, float]]:
    """The curves of all settings, and how far from the manifold they ended."""
    side = SideBySide([_lane(config, setting, seed) for setting in settings])
    names = [setting.name for setting in settings]
    curves: dict[str, Curve] = {name: [] for name in names}
    first, rate = 0, 1.0
    if (state := run.load(cell)) is not None:
        for lane, its in zip(side.lanes, state["lanes"], strict=True):
            lane.load_state_dict(its)
        curves, first, rate = state["curves"], state["epoch"], state["rate"]
    for epoch in range(first, epochs):
        wanted = 1.0 if cell == "search" else rate_factor(epoch, epochs)
        if wanted != rate:
            rate = wanted
            for lane in side.lanes:
                lane.set_lr(rate)
        if epoch == 1 and cell != "search":
            _train_in_turn(config, settings, side, train, seed, epoch, cell, run)
        else:
            side.train_epoch(train.shuffled(config.batch, seed, epoch))
        for setting, lane in zip(settings, side.lanes, strict=True):
            seen = lane.totals()
            loss = seen["loss"] if math.isfinite(seen["loss"]) else None
            accuracy = lane.accuracy(test.plain(2_000 if config.device == "cpu" else 10_000))
            row = {"loss": loss, "train": seen["accuracy"], "test": accuracy}
            curves[setting.name].append(row)
            run.metric(cell, setting=setting.name, epoch=epoch, **row)
        if (epoch + 1) % config.save_every == 0 and epoch + 1 < epochs:
            lanes = [lane.state_dict() for lane in side.lanes]
            run.save(cell, {"lanes": lanes, "curves": curves, "epoch": epoch + 1, "rate": rate})
        run.progress((epoch + 1) / epochs)
    errors = {
        setting.name: 0.0 if setting.vanilla else largest_error(lane.model)
        for setting, lane in zip(settings, side.lanes, strict=True)
    }
    return curves, errors


def _train_in_turn(
    config: CifarConfig,
    settings: Sequence[Setting],
    side: SideBySide,
    train: ColourSet,
    seed: int,
    epoch: int,
    cell: str,
    run: Run,
) -> None:
    """An epoch of one lane after the other, on the clock."""
    for n, setting in enumerate(settings):
        began = time.perf_counter()
        side.train_epoch(train.shuffled(config.batch, seed, epoch), only=n)
        run.time(cell, f"{setting.method} seconds an epoch", time.perf_counter() - began)


def _best(settings: Sequence[Setting], curves: Mapping[str, Any]) -> dict[str, float]:
    """For each method the value with the highest accuracy on the images held out."""
    best: dict[str, Setting] = {}
    for setting in settings:
        held = best.setdefault(setting.method, setting)
        if curves[setting.name][-1]["test"] > curves[held.name][-1]["test"]:
            best[setting.method] = setting
    return {method: setting.value for method, setting in best.items()}
