"""Training of PlainNets on CIFAR-10: all settings of a cell together, on the same batches."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn

from ...data.colour import Colours, ColourSet, default_colours, load_colours
from ...models.lanes import Lane, Precision, SideBySide
from ...models.methods import Method, largest_error, make_optimizers, rate_factor
from ...models.plainnet import PlainNet
from ...models.series import SeriesSGD
from ...runs.files import RunError
from ...runs.run import Run

Trained = Literal[
    "vanilla", "adam", "ortinit", "exact", "s=2", "s=log", "s=sqrt", "s=r",
    "taylor20", "taylor100", "taylor200",
]  # fmt: skip
"""The paper's methods; "ortinit" is vanilla from the orthogonal initial weights of the others,
"adam" is Adam from the initial weights of vanilla."""

Curve = list[dict[str, float | None]]


@dataclass(frozen=True, kw_only=True)
class CifarConfig:
    """A deep plain network, trained by the paper's methods on the same batches.

    Every method is searched: vanilla and ortinit on `lrs`, Adam on `adam_lrs`, the others on
    `scales`, with a tenth of the training images held out; the best setting is then trained on all.
    A Taylor series takes the setting of the exact method.

    Every batch norm begins with the bias `shift`. With torch's default 0, half of the units of a
    layer are cut and gradients grow from layer to layer: in PlainNet-110 those of the first layer
    are more than 1e4 times those of the last one, and rounding grows with them. With 1.25 they have
    similar sizes.
    """

    methods: tuple[Trained, ...] = ("vanilla", "ortinit", "exact", "s=2", "s=r")
    """The methods to compare."""
    unshifted: tuple[Trained, ...] = ()
    """Methods that also train a network whose batch norms begin with a bias of 0."""
    depth: int = 110
    """Number of layers: 3 n + 2."""
    width: int = 16
    """Channels of the first stage."""
    batch: int = 128
    """Images in a batch."""
    epochs: int = 100
    """Epochs of the reported runs; learning rates drop tenfold at 3/9, 6/9 and 8/9 of them."""
    search_epochs: int = 4
    """Epochs for each setting of the search. The rates drop here, too: at full rates the running
    means of batch norms lag behind the weights, and the test accuracy is meaningless."""
    shift: float = 1.25
    """Initial bias of every batch norm."""
    lr: float = 0.1
    """Learning rate of the weights that are not orthogonal (the paper's baseline)."""
    lrs: tuple[float, ...] = (0.05, 0.1, 0.5)
    """Learning rates to search for vanilla and ortinit (the paper's grid)."""
    adam_lrs: tuple[float, ...] = (1e-4, 1e-3, 1e-2)
    """Learning rates to search for Adam."""
    scales: tuple[float, ...] = (0.1, 1.0, 10.0)
    """Factors to search for the others: FlowSGD's learning rate over `lr` (the paper's grid)."""
    series_depth: int | None = None
    """Layers of a network without the shift whose first steps show where a series fails."""
    series_steps: int = 20
    """Steps of that network."""
    images: int | None = None
    """Number of training images; all when omitted."""
    test_images: int | None = None
    """Number of test images before the last epoch, which is tested on all."""
    data: Colours = field(default_factory=default_colours)
    """The dataset: "cifar10" or "digits"."""
    precision: Precision = "bf16" if torch.cuda.is_available() else "float32"
    """Precision of the products in the network; weights and optimisers are float32."""
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    """Device of the run."""
    save_every: int = 5
    """Epochs between two checkpoints."""
    seeds: tuple[int, ...] = (0,)
    """Seeds; every method runs once with each."""


@dataclass(frozen=True)
class Setting:
    """A training: a method, the value from its grid, and whether batch norms are shifted."""

    method: Trained
    value: float
    shifted: bool = True

    @property
    def label(self) -> str:
        """The name of the method in tables."""
        return self.method if self.shifted else f"{self.method}, no shift"

    @property
    def name(self) -> str:
        """The name of its curve."""
        return f"{self.label} {'lr' if self.free else 'scale'} {self.value:g}"

    @property
    def free(self) -> bool:
        """Whether no weight is kept orthogonal."""
        return self.method in ("vanilla", "adam", "ortinit")


def grid_of(config: CifarConfig) -> list[Setting]:
    """All settings of the search."""
    values = {"vanilla": config.lrs, "ortinit": config.lrs, "adam": config.adam_lrs}
    return [
        Setting(method, value, shifted)
        for method, shifted in _kinds(config)
        for value in values.get(method, config.scales)
        if not method.startswith("taylor")
    ]


def chosen(config: CifarConfig, best: Mapping[str, float]) -> list[Setting]:
    """One setting for each method, with the best value of the search."""
    settings = []
    for method, shifted in _kinds(config):
        like: Trained = "exact" if method.startswith("taylor") else method
        settings.append(Setting(method, best[Setting(like, 0.0, shifted).label], shifted))
    return settings


def _kinds(config: CifarConfig) -> list[tuple[Trained, bool]]:
    return [*((m, True) for m in config.methods), *((m, False) for m in config.unshifted)]


def load(config: CifarConfig, held_out: bool) -> tuple[ColourSet, ColourSet]:
    """Training and test images; the search tests on a tenth of the training images."""
    device = torch.device(config.device)
    pixels, labels = load_colours(config.data, "train")
    pixels, labels = pixels[: config.images], labels[: config.images]
    if config.batch > 0.9 * len(labels):
        raise RunError(
            f"--batch must be at most nine tenths of the {len(labels)} training images, since the "
            f"search holds out the rest: got {config.batch}."
        )
    if held_out:
        n = len(labels) - len(labels) // 10
        train = ColourSet.of(pixels[:n], labels[:n], None, device)
        return train, ColourSet.of(pixels[n:], labels[n:], train, device)
    train = ColourSet.of(pixels, labels, None, device)
    return train, ColourSet.of(*load_colours(config.data, "test"), train, device)


def make_lane(config: CifarConfig, setting: Setting, seed: int) -> Lane:
    """A network and its optimisers."""
    with torch.random.fork_rng(devices=[]):  # the same initial weights for all methods
        torch.manual_seed(seed)
        shift = config.shift if setting.shifted else 0.0
        model = PlainNet(config.depth, config.width, shift=shift)
        if setting.method in ("vanilla", "adam"):
            for module in model.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    model = model.to(config.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    method: Method = "vanilla" if setting.method == "ortinit" else setting.method
    optimizers = make_optimizers(
        model,
        method,
        lr=setting.value if setting.free else config.lr,
        orthogonal_lr=config.lr * setting.value,
        seed=seed,
        check_every=1 if config.device == "cuda" else 256,
    )
    return Lane(model, optimizers, precision=config.precision)


def train_all(
    config: CifarConfig, settings: Sequence[Setting], seed: int, epochs: int, cell: str, run: Run
) -> dict[str, Any]:
    """Train the settings of a cell; returns their curves and final orthogonality errors."""
    searching = cell == "search"
    train, test = load(config, held_out=searching)
    n = config.test_images
    part = replace(test, pixels=test.pixels[:n], labels=test.labels[:n])
    side = SideBySide([make_lane(config, setting, seed) for setting in settings])
    curves: dict[str, Curve] = {setting.name: [] for setting in settings}
    first, rate = 0, 1.0
    if (state := run.load(cell)) is not None:
        for lane, its in zip(side.lanes, state["lanes"], strict=True):
            lane.load_state_dict(its)
        curves, first, rate = state["curves"], state["epoch"], state["rate"]
    for epoch in range(first, epochs):
        wanted = rate_factor(epoch, epochs)
        if wanted != rate:
            rate = wanted
            for lane in side.lanes:
                lane.set_lr(rate)
        if epoch == 1 and not searching:
            _train_in_turn(config, settings, side, train, seed, epoch, cell, run)
        else:
            side.train_epoch(train.shuffled(config.batch, seed, epoch))
        tested = test if epoch + 1 == epochs else part
        for setting, lane in zip(settings, side.lanes, strict=True):
            seen = lane.totals()
            loss = seen["loss"] if math.isfinite(seen["loss"]) else None
            accuracy = lane.accuracy(tested.plain(500 if config.device == "cpu" else 10_000))
            row = {"loss": loss, "train": seen["accuracy"], "test": accuracy}
            curves[setting.name].append(row)
            run.metric(cell, setting=setting.name, epoch=epoch, **row)
        if (epoch + 1) % config.save_every == 0 and epoch + 1 < epochs:
            lanes = [lane.state_dict() for lane in side.lanes]
            run.save(cell, {"lanes": lanes, "curves": curves, "epoch": epoch + 1, "rate": rate})
        run.progress((epoch + 1) / epochs)
    pairs = list(zip(settings, side.lanes, strict=True))
    return {
        "curves": curves,
        "errors": {s.name: 0.0 if s.free else weight_error(at.model) for s, at in pairs},
        "norms": {
            s.name: _finite(at.optimizers[0].largest_norm())
            for s, at in pairs
            if isinstance(at.optimizers[0], SeriesSGD)
        },
        "images": len(train),
    }


def weight_error(model: nn.Module) -> float | None:
    """`largest_error`, or None if a weight is not finite."""
    good = all(bool(p.isfinite().all()) for p in model.parameters())
    return _finite(largest_error(model)) if good else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


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
    """Train an epoch of one setting after the other, and record its seconds."""
    for n, setting in enumerate(settings):
        began = time.perf_counter()
        side.train_epoch(train.shuffled(config.batch, seed, epoch), only=n)
        run.time(cell, f"{setting.label} seconds an epoch", time.perf_counter() - began)
