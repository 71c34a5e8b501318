"""How balanced Omega is during training: rho against the iteration (Sec. 9.2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from skewflow.samplers import HRegular

from ..data import SOURCES, Digits, default_images, load_images
from ..measure import balance
from ..models.mlp import OrthogonalMLP, Training
from ..runs.experiment import Experiment, Figure, Table, Timing
from ..runs.run import Run
from ..runs.threads import one_thread


@dataclass(frozen=True, kw_only=True)
class RhoConfig:
    """rho of the generators of a training run."""

    d: int = 200
    """Width of the orthogonal layer."""
    block_sizes: tuple[int, ...] = balance.BLOCK_SIZES
    """Block sizes s."""
    num_steps: int = 3000
    """Training steps."""
    every: int = 50
    """Steps between two measurements."""
    batch: int = 128
    """Images in a batch."""
    lr: float = 1e-3
    """Step size of FlowSGD, with s = 2 and h = abs as in the paper."""
    data: Digits = field(default_factory=default_images)
    """The dataset: "mnist" or "digits"."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds; one training run for each."""


class Rho(Experiment[RhoConfig]):
    """One cell for each seed; its state is stored ten times."""

    name = "rho"
    title = "Ablation: how balanced the generator stays"
    paper = (
        "On Humanoid at d = 200, rho hardly changes during training and follows d/s up to a "
        "constant factor, so that version II of Algorithm 1 accepts often (Sec. 9.2). The sum "
        "gamma is the corrected one, over d(s-1) entries; the printed one has half as many."
    )
    presets: Mapping[str, RhoConfig] = {
        "quick": RhoConfig(num_steps=60, every=10, seeds=(0,)),
        "paper": RhoConfig(),
    }

    def cells(self, config: RhoConfig) -> Sequence[str]:
        """One name for each seed."""
        return [f"seed-{seed}" for seed in config.seeds]

    @one_thread()
    def run_cell(self, config: RhoConfig, cell: str, run: Run) -> dict[str, Any]:
        """Train; measure rho for every s at intervals."""
        seed = int(cell.removeprefix("seed-"))
        images = load_images(config.data)
        model = OrthogonalMLP(images.pixels[0].numel(), config.d, seed)
        training = Training(
            model,
            images,
            lr=config.lr,
            batch=config.batch,
            seed=seed,
            block_size=2,
            sampler=HRegular(2),
        )
        rows: list[dict[str, Any]] = []
        if (state := run.load(cell)) is not None:
            training.load_state_dict(state["training"])
            rows = state["rows"]

        def measure(step: int, loss: float) -> None:
            if step % config.every == 0:
                G = model.W.grad
                assert G is not None
                values = balance.measure(model.W.detach(), G, config.block_sizes)
                rows.append({"step": step, "loss": loss, "rho": values})
                run.metric(cell, step=step, loss=loss, **{f"rho {s}": v for s, v in values.items()})

        chunk = max(1, config.num_steps // 10)
        while training.step < config.num_steps:
            training.run(min(chunk, config.num_steps - training.step), measure)
            run.save(cell, {"training": training.state_dict(), "rows": rows})
            run.progress(training.step / config.num_steps)
        return {"rows": rows}

    def summarise(self, config: RhoConfig, cells: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """The curves, and for each s their mean, least and largest value."""
        rows = [row for cell in cells.values() for row in cell["rows"]]
        return {
            "d": config.d,
            "data": SOURCES[config.data],
            "sizes": balance.summarise(config.d, config.block_sizes, rows),
            "curves": {name: cell["rows"] for name, cell in cells.items()},
        }

    def verdict(self, results: Mapping[str, Any]) -> str:
        """How much rho changed, and how far from d/s it is."""
        return (
            f"In training an orthogonal layer of width {results['d']} on {results['data']}, "
            f"{balance.verdict(results['sizes'])}."
        )

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The table with a row for each s."""
        return [balance.table([((), results["sizes"])])]

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figure of the curves on a logarithmic axis, with d/s dotted."""
        caption = f"rho in training on {results['data']}, d = {results['d']}"
        sizes, curves = results["sizes"], results["curves"]
        return [balance.figure("rho", sizes, curves, caption, "iteration")]
