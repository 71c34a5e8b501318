"""How balanced Omega stays in training: rho against the iteration (Sec. 9.2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...tournaments import EdgeWeights
from ...tournaments.balance import rho
from ..data import SOURCES, Digits, default_images, load_images
from ..experiment import Experiment, Figure, Table, Timing
from ..mlp import OrthogonalMLP, Training
from ..run import Run
from ..threads import one_thread

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True, kw_only=True)
class RhoConfig:
    """rho of the generators that a training run meets."""

    d: int = 200
    """Width of the orthogonal layer."""
    block_sizes: tuple[int, ...] = (2, 4, 5, 10, 20, 25, 50)
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
    """"mnist" or "digits"."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One training run each."""


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
        """Train; measure rho for every s now and then."""
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
            sampler="h_regular",
        )
        rows: list[dict[str, Any]] = []
        if (state := run.load(cell)) is not None:
            training.load_state_dict(state["training"])
            rows = state["rows"]

        def measure(step: int, loss: float) -> None:
            if step % config.every == 0:
                G = model.W.grad
                assert G is not None
                W = EdgeWeights(model.W.detach(), G)
                values = {str(s): rho(W, s) for s in config.block_sizes}
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
        sizes = []
        for s in config.block_sizes:
            values = [row["rho"][str(s)] for cell in cells.values() for row in cell["rows"]]
            mean = sum(values) / len(values)
            sizes.append(
                {
                    "s": s,
                    "d_over_s": config.d / s,
                    "mean": mean,
                    "least": min(values),
                    "largest": max(values),
                    "factor": mean / (config.d / s),
                }
            )
        return {
            "d": config.d,
            "data": SOURCES[config.data],
            "sizes": sizes,
            "curves": {name: cell["rows"] for name, cell in cells.items()},
        }

    def verdict(self, results: Mapping[str, Any]) -> str:
        """How much rho moved, and how far from d/s it is."""
        moved = max(size["largest"] / size["least"] for size in results["sizes"])
        factors = [size["factor"] for size in results["sizes"]]
        constant = "hardly changes" if moved < 1.5 else "changes"
        near = "follows" if max(factors) / min(factors) < 2 else "does not follow"
        return (
            f"In training an orthogonal layer of width {results['d']} on {results['data']}, "
            f"rho {constant} (largest over least value at most {moved:.2f}) and {near} d/s: the "
            f"factor lies between {min(factors):.2f} and {max(factors):.2f}."
        )

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """One row for each s."""
        rows = tuple(
            (z["s"], z["d_over_s"], z["mean"], z["least"], z["largest"], z["factor"], 2 * z["mean"])
            for z in results["sizes"]
        )
        columns = ("s", "paper: about c d/s, d/s =", "ours: mean rho", "least", "largest")
        return [
            Table(
                "rho",
                "rho = ||h(Omega)||_1 / gamma with h = abs over the whole of training and all "
                "seeds. The last column takes gamma as printed, the sum over the triangle alone. "
                "The paper shows a figure only, which our source of it lacks.",
                (*columns, "ours over d/s", "with gamma as printed"),
                rows,
            )
        ]

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The curves on a logarithmic axis, d/s dotted."""

        def draw(canvas: "Canvas") -> None:
            axis = canvas.subplots()
            for n, size in enumerate(results["sizes"]):
                colour = f"C{n}"
                for m, rows in enumerate(results["curves"].values()):
                    steps = [row["step"] for row in rows]
                    values = [row["rho"][str(size["s"])] for row in rows]
                    label = f"s = {size['s']}" if m == 0 else None
                    axis.semilogy(steps, values, color=colour, label=label)
                axis.axhline(size["d_over_s"], color=colour, linestyle=":", linewidth=1)
            axis.set(xlabel="iteration", ylabel="rho")
            canvas.legend(loc="outside right center")

        caption = (
            f"rho in training on {results['data']}, d = {results['d']}, one line for each seed; "
            "dotted lines are d/s."
        )
        return [Figure("rho", caption, draw)]
