"""Exponentials in low precision: their orthogonality and their accuracy (Sec. 9.1.2)."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from skewflow.geometry import expm, taylor
from skewflow.kernels import rotate_blocks
from skewflow.samplers import Uniform
from skewflow.tournaments import EdgeWeights

from ..measure.products import RoundedProducts
from ..runs.experiment import Experiment, Figure, Table, Timing
from ..runs.run import Run
from ..runs.seeds import spawn
from ..runs.threads import one_thread

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

PRECISIONS = ("float64", "float32", "tf32", "bf16")
STYLES = {"Taylor T = 20": "--", "Taylor T = 100": "--", "Taylor T = 200": ":"}
LOST = 0.1
"""Largest error, relative to the norm of a rotation, of a result that is of use."""


@dataclass(frozen=True, kw_only=True)
class NumericsConfig:
    """Orthogonality and accuracy of exponentials against the norm of their argument."""

    d: int = 128
    """Rows."""
    block_sizes: tuple[int, ...] = (2, 8, 64)
    """Block sizes of the stochastic steps."""
    terms: tuple[int, ...] = (20, 100, 200)
    """Lengths of the unscaled Taylor series."""
    norms: tuple[float, ...] = (0.1, 0.3, 1, 3, 6, 10, 16, 20, 25, 30, 36, 40, 60, 100, 300, 1000)
    """Spectral norms of the argument, eta times Omega."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds of the Gaussian skew matrices; the median over them is shown."""


class Numerics(Experiment[NumericsConfig]):
    """One cell for each norm, with all methods under all precisions on the same matrices."""

    name = "numerics"
    title = "Numerical trouble of the exact exponential"
    paper = (
        "A Taylor series cut at T = 100 kept PlainNet-110 from training, T = 200 was acceptable; "
        "exact integrators are said to be unstable, stochastic ones not (Sec. 9.1.2, 9.3)."
    )
    presets: Mapping[str, NumericsConfig] = {
        "quick": NumericsConfig(
            d=32, block_sizes=(2, 8), norms=(0.1, 1, 10, 20, 40, 100), seeds=(0, 1, 2)
        ),
        "paper": NumericsConfig(),
    }

    def cells(self, config: NumericsConfig) -> Sequence[str]:
        """One name for each norm."""
        return [f"norm-{norm:g}" for norm in config.norms]

    @one_thread()
    def run_cell(self, config: NumericsConfig, cell: str, run: Run) -> dict[str, Any]:
        """Measure both errors of every method under every precision, for each seed."""
        norm = dict(zip(self.cells(config), config.norms, strict=True))[cell]
        errors: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for n, seed in enumerate(config.seeds):
            A = _skew(config.d, norm, seed)
            for method, argument, apply in _methods(config, A, seed):
                exact = _exponential(argument)
                for precision in PRECISIONS:
                    with _precision(precision) as dtype:
                        R = apply(dtype).to(torch.float64)
                    both = _errors(R, exact)
                    errors.setdefault((method, precision), []).append(both)
                    run.metric(
                        cell,
                        seed=seed,
                        method=method,
                        precision=precision,
                        orthogonality=_finite(both[0]),
                        accuracy=_finite(both[1]),
                    )
            run.progress((n + 1) / len(config.seeds))
        rows = [
            {
                "method": method,
                "precision": precision,
                "orthogonality": _finite(median(o for o, _ in both)),
                "accuracy": _finite(median(a for _, a in both)),
            }
            for (method, precision), both in errors.items()
        ]
        return {"norm": norm, "rows": rows}

    def summarise(
        self, config: NumericsConfig, cells: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """Every method's curve, and the largest norm up to which it is of use."""
        curves: dict[str, dict[str, Any]] = {}
        for cell in cells.values():
            for row in cell["rows"]:
                key = f"{row['method']}, {row['precision']}"
                curve = curves.setdefault(
                    key,
                    {
                        "method": row["method"],
                        "precision": row["precision"],
                        "norms": [],
                        "orthogonality": [],
                        "accuracy": [],
                    },
                )
                curve["norms"].append(cell["norm"])
                for error in ("orthogonality", "accuracy"):
                    curve[error].append(row[error])
        for curve in curves.values():
            curve["useful_to"] = _useful_to(curve)
        return {"d": config.d, "num_seeds": len(config.seeds), "curves": list(curves.values())}

    def verdict(self, results: Mapping[str, Any]) -> str:
        """Where the series fail, whether more terms help, and how orthogonal block steps are."""
        curves = _by_key(results)
        series = list(dict.fromkeys(m for m, _ in curves if m.startswith("Taylor")))
        longest = series[-1]
        parts = []
        for precision in ("float64", "float32"):
            useful = curves[longest, precision]["useful_to"]
            ours = curves["scaled Taylor (ours)", precision]["useful_to"]
            parts.append(
                f"in {precision} the series with {longest[7:]} is of use up to norm {useful:g}, "
                f"the scaled one up to {ours:g}, the largest tested norm being "
                f"{max(curves[longest, precision]['norms']):g}"
            )
        for short in series[-2:-1]:
            rescued = _rescued(curves, short, longest)
            where = f"at norm {', '.join(rescued)}" if rescued else "nowhere"
            parts.append(f"{longest[7:]} succeeds where {short[7:]} fails {where}")
        for precision in ("float32", "tf32"):
            errors = [
                error
                for (method, p), curve in curves.items()
                if method.startswith("blocks") and p == precision
                for error in curve["orthogonality"]
            ]
            worst = "not finite" if None in errors else f"{max(errors):.1e}"
            parts.append(f"the worst orthogonality error of a block step in {precision} is {worst}")
        text = "; ".join(parts)
        return text[0].upper() + text[1:] + "."

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The tables of the largest useful norms, and of the orthogonality errors by norm."""
        curves = results["curves"]
        methods = list(dict.fromkeys(c["method"] for c in curves))
        by_key = _by_key(results)
        reach = Table(
            "reach",
            f"Largest tested norm up to which the relative error of the rotation stays below "
            f"{LOST:g}, d = {results['d']}, median of {results['num_seeds']} Gaussian skew "
            "matrices. The paper has no such numbers; it says that T = 100 is too short and "
            "T = 200 acceptable.",
            ("method", *PRECISIONS),
            tuple((m, *(by_key[m, p]["useful_to"] for p in PRECISIONS)) for m in methods),
        )
        norms = curves[0]["norms"]
        drift = Table(
            "orthogonality",
            "Orthogonality error ||R^T R - I||_F / sqrt(d) of one step, by norm of eta Omega; a "
            "dash is not finite. A block step's argument carries its weight (d-1)/(s-1). TF32 and "
            "bf16 are emulated: the factors of every float32 product are rounded. Our exponential "
            "computes in float64 where the norm is above 100.",
            ("method", "products", *(f"norm {norm:g}" for norm in norms)),
            tuple((c["method"], c["precision"], *c["orthogonality"]) for c in curves),
        )
        return [reach, drift]

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figure of orthogonality and accuracy against the norm, in float32 and TF32."""

        def draw(canvas: "Canvas") -> None:
            axes = canvas.subplots(2, 2, sharex=True, sharey=True)
            for column, precision in enumerate(("float32", "tf32")):
                for row, error in enumerate(("orthogonality", "accuracy")):
                    axis = axes[row][column]
                    for curve in results["curves"]:
                        if curve["precision"] == precision:
                            y = [math.nan if e is None else max(e, 1e-9) for e in curve[error]]
                            dashed = STYLES.get(curve["method"], "-")
                            axis.loglog(curve["norms"], y, dashed, label=curve["method"])
                    axis.set_ylim(1e-8, 1e3)
                    if row == 0:
                        axis.set_title({"tf32": "TF32 products"}.get(precision, precision))
                    if column == 0:
                        axis.set_ylabel(f"{error} error")
                    if row == 1:
                        axis.set_xlabel("spectral norm of ηΩ")
            handles, labels = axes[0][0].get_legend_handles_labels()
            canvas.legend(handles, labels, loc="outside right center")

        caption = (
            "Errors of one step, relative to the norm of a rotation, against the norm of its "
            "argument. Curves that end are not finite from there on."
        )
        return [Figure("numerics", caption, draw, (8.4, 5.2))]


def pade(A: Tensor) -> Tensor:
    """The exponential by scaling, squaring and the Padé approximant of degree 13 (Higham 2005)."""
    norm = A.abs().sum(-2).amax().item()
    squarings = max(0, math.ceil(math.log2(norm / 5.37))) if norm > 0 else 0
    A = A * 0.5**squarings
    b = [float(math.factorial(26 - n) * math.comb(13, n)) for n in range(14)]
    b = [value / b[0] for value in b]
    I = torch.eye(len(A), dtype=A.dtype)
    A2 = A @ A
    A4 = A2 @ A2
    A6 = A4 @ A2
    odd = A6 @ (b[13] * A6 + b[11] * A4 + b[9] * A2) + b[7] * A6 + b[5] * A4 + b[3] * A2 + b[1] * I
    U = A @ odd
    V = A6 @ (b[12] * A6 + b[10] * A4 + b[8] * A2) + b[6] * A6 + b[4] * A4 + b[2] * A2 + I
    R = torch.linalg.solve(V - U, V + U)
    for _ in range(squarings):
        R = R @ R
    return R


def eigen(A: Tensor) -> Tensor:
    """The exponential by the eigenvectors of the Hermitian matrix iA."""
    values, V = torch.linalg.eigh(1j * A)
    return ((V * torch.exp(-1j * values)) @ V.mH).real


def _methods(
    config: NumericsConfig, A: Tensor, seed: int
) -> list[tuple[str, Tensor, Callable[[torch.dtype], Tensor]]]:
    """The name, the argument and a function from dtype to rotation of each method."""

    def series(terms: int, dtype: torch.dtype) -> Tensor:
        return taylor(A.to(dtype), terms)

    found: list[tuple[str, Tensor, Callable[[torch.dtype], Tensor]]] = [
        (f"Taylor T = {n}", A, partial(series, n)) for n in config.terms
    ]
    found.append(("Padé", A, lambda dtype: pade(A.to(dtype))))
    found.append(("eigenvectors", A, lambda dtype: eigen(A.to(dtype))))
    found.append(("scaled Taylor (ours)", A, lambda dtype: expm(A.to(dtype))))
    W = EdgeWeights.of(A)
    for s in config.block_sizes:
        t = Uniform(s).sample(W, generator=spawn(seed, "blocks", s))
        blocks = t.blocks(W)

        def step(dtype: torch.dtype, t: Any = t, blocks: Any = blocks) -> Tensor:
            I = torch.eye(config.d, dtype=dtype)
            return rotate_blocks(I, t.partition, tuple(b.to(dtype) for b in blocks), 1.0)

        found.append((f"blocks s = {s}", t.dense(W), step))
    return found


@contextlib.contextmanager
def _precision(name: str) -> Any:
    """Context with products of the precision `name`, which gives the dtype to compute in."""
    if name in ("float64", "float32"):
        yield getattr(torch, name)
    else:
        with RoundedProducts(name):
            yield torch.float32


def _skew(d: int, norm: float, seed: int) -> Tensor:
    """A Gaussian skew matrix of the given spectral norm, rounded to float32 for all methods."""
    G = torch.randn(d, d, generator=spawn(seed, "omega", d), dtype=torch.float64).triu(1)
    A = G - G.mT
    return (A * (norm / torch.linalg.matrix_norm(A, 2))).float()


def _exponential(A: Tensor) -> Tensor:
    """The exponential in extended precision, rounded to float64, by independent code."""
    M = A.numpy().astype(np.longdouble)
    norm = float(np.abs(M).sum(axis=0).max())
    squarings = max(0, math.ceil(math.log2(norm)) + 2) if norm > 0 else 0
    M /= np.longdouble(2) ** squarings
    E = np.eye(len(M), dtype=np.longdouble)
    for n in range(18, 0, -1):  # 0.25**19 / 19! < 1e-28
        E = np.eye(len(M), dtype=np.longdouble) + M @ E / n
    for _ in range(squarings):
        E = E @ E
    return torch.from_numpy(E.astype(np.float64))


def _errors(R: Tensor, exact: Tensor) -> tuple[float, float]:
    """Orthogonality error and distance to the exact rotation, both over sqrt(d)."""
    I = torch.eye(len(R), dtype=R.dtype)
    both = torch.stack([(R.mT @ R - I).norm(), (R - exact).norm()]) / len(R) ** 0.5
    o, a = both.nan_to_num(nan=math.inf).tolist()
    return o, a


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _useful_to(curve: Mapping[str, Any]) -> float:
    """The last norm before the first useless result."""
    last = 0.0
    for norm, error in zip(curve["norms"], curve["accuracy"], strict=True):
        if error is None or error >= LOST:
            break
        last = norm
    return last


def _rescued(
    curves: Mapping[tuple[str, str], Mapping[str, Any]], short: str, long: str
) -> list[str]:
    """The norms and precisions at which the longer series is of use and the shorter is not."""
    return [
        f"{norm:g} ({precision})"
        for precision in PRECISIONS
        for norm, a, b in zip(
            curves[long, precision]["norms"],
            curves[short, precision]["accuracy"],
            curves[long, precision]["accuracy"],
            strict=True,
        )
        if b is not None and b < LOST and (a is None or a >= LOST)
    ]


def _by_key(results: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(c["method"], c["precision"]): c for c in results["curves"]}
