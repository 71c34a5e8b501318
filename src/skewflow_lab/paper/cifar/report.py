"""Claims, verdict, tables and figure of the CIFAR-10 runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from ...runs.experiment import Table, Timing
from ..statistics import beats, compared, difference, loses, points

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

NEAR = 1.0
"""Points of test accuracy within which a method counts as competitive."""
FAR = 5.0
"""Points of training accuracy: a method that is further behind does not train properly."""
COLOURS = 9
"""Number of colours; further lines repeat the colours and are dashed."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, the measured value, and whether it supports the claim."""

    text: str
    measured: str
    holds: bool


def claims_of(results: Mapping[str, Any]) -> list[Claim]:
    """All claims whose methods were run."""
    found = results["methods"]

    def diff(key: str, ours: str, theirs: str) -> dict[str, float | None]:
        a, b = (_percent(found[method][key]) for method in (ours, theirs))
        return difference(a, b)

    def better(text: str, theirs: str, *ours: str) -> Claim:
        diffs = [diff("final", method, theirs) for method in ours]
        said = [f"{m} {compared(each)}" for m, each in zip(ours, diffs, strict=True)]
        return Claim(text, f"against {theirs}: {', '.join(said)}", all(map(beats, diffs)))

    def worse(text: str, ours: str, theirs: str) -> Claim:
        each = diff("final", ours, theirs)
        holds = loses(each) and (each["mean"] or 0.0) < -NEAR
        return Claim(text, f"{ours} against {theirs}: {points(each)} points", holds)

    def near(text: str, ours: str, theirs: str) -> Claim:
        each = diff("final", ours, theirs)
        holds = (each["mean"] or 0.0) >= -NEAR
        return Claim(text, f"{ours} against {theirs}: {points(each)} points", holds)

    def fails(text: str, ours: str, theirs: str, claimed: bool = True) -> Claim:
        each = diff("train", ours, theirs)
        behind = (each["mean"] or 0.0) < -FAR
        said = f"training accuracy of {ours} against {theirs}: {points(each)} points"
        if (norms := found[ours].get("norms")) and None not in norms:
            said += f", norms of lr Omega up to {max(norms):.2g}"
        return Claim(text, said, behind == claimed)

    claims: list[tuple[Callable[..., Claim], tuple[Any, ...]]] = [
        (better, ("Orthogonal optimisation improves training", "vanilla", "exact", "s=r")),
        (near, ("s = d / log d is competitive with exact", "s=r", "exact")),
        (worse, ("s = 2 is too noisy", "s=2", "s=r")),
        (worse, ("Vanilla Adam is challenging", "adam", "vanilla")),
        (better, ("An orthogonal initialisation alone is not enough", "ortinit", "exact")),
        (fails, ("s = log d does not train properly", "s=log", "s=r")),
        (fails, ("s = sqrt d does not train properly", "s=sqrt", "s=r")),
        (fails, ("A Taylor series of 20 terms is too short", "taylor20", "exact")),
        (fails, ("A Taylor series of 100 terms is too short", "taylor100", "exact")),
        (fails, ("A Taylor series of 200 terms is acceptable", "taylor200", "exact", False)),
        (
            better,
            (
                "Without the shift of batch norms, orthogonal optimisation improves training",
                "vanilla, no shift", "exact, no shift", "s=r, no shift",
            ),
        ),
    ]  # fmt: skip
    known = [
        make(*words)
        for make, words in claims
        if all(word in found for word in words[1:] if isinstance(word, str))
    ]
    return [*known, *_claims_of_series(results)]


def _claims_of_series(results: Mapping[str, Any]) -> list[Claim]:
    """Whether a series fails in the deep network at all scales at which exact steps do not."""
    series = results.get("series")
    if not series:
        return []
    broke = {(row["method"], row["scale"]): row["broke_at"] for row in series["rows"]}
    sound = [scale for (method, scale), at in broke.items() if method == "exact" and at is None]
    claims = []
    for method in dict.fromkeys(row["method"] for row in series["rows"]):
        if method == "exact":
            continue
        terms, lost = method.removeprefix("taylor"), [s for s in sound if broke[method, s]]
        norms = [
            row["norm"]
            for row in series["rows"]
            if row["method"] == method and row["scale"] in sound and row["norm"] is not None
        ]
        reach = f", first norms of lr Omega {min(norms):.2g} to {max(norms):.2g}" if norms else ""
        claimed = method != "taylor200"
        claims.append(
            Claim(
                f"In PlainNet-{series['depth']} without the shift, a Taylor series of {terms} "
                f"terms is {'too short' if claimed else 'acceptable'}",
                f"it leaves the manifold within {series['steps']} steps at {len(lost)} of the "
                f"{len(sound)} scales at which exact steps do not{reach}",
                bool(sound) and (len(lost) == len(sound)) == claimed,
            )
        )
    return claims


def tables_of_series(results: Mapping[str, Any]) -> list[Table]:
    """The table of the first steps of the deep network, if they were taken."""
    series = results.get("series")
    if not series:
        return []
    rows = tuple(
        (row["method"], row["scale"], row["norm"], row["broke_at"], row["error"])
        for row in series["rows"]
    )
    caption = (
        f"The first {series['steps']} steps of PlainNet-{series['depth']} whose batch norms begin "
        "with a bias of 0, in float32: a bound on the spectral norm of lr Omega in the first step "
        "(none for exact steps, or where it overflows), the step after which a weight had left "
        "the manifold, and the largest normalised ||W^T W - I|| then or at the end (none where it "
        "overflows)."
    )
    return [Table("series", caption, ("method", "scale", "norm", "left after", "error"), rows)]


def table_of_claims(results: Mapping[str, Any]) -> Table:
    """The table with a row for each claim."""
    return Table(
        "claims",
        "The paper's claims and what was measured: differences in points of test accuracy unless "
        "it says training, mean over seeds ± standard error. A method is better or worse by more "
        f"than two standard errors, too noisy or challenging by more than {NEAR:g} point besides, "
        f"competitive down to {NEAR:g} point below; it does not train properly more than {FAR:g} "
        "points of training accuracy below.",
        ("claim", "measured", "holds here"),
        tuple((c.text, c.measured, "yes" if c.holds else "no") for c in claims_of(results)),
    )


def table_of_methods(results: Mapping[str, Any], timing: Timing) -> Table:
    """The table with a row for each method."""
    rows = []
    for method, found in results["methods"].items():
        seconds = [
            cell[f"{method} seconds an epoch"]
            for cell in timing.values()
            if f"{method} seconds an epoch" in cell
        ]
        rows.append(
            (
                method,
                found["setting"].removeprefix(method).strip(),
                fmean(_percent(found["final"])),
                stdev(_percent(found["final"])) if len(found["final"]) > 1 else None,
                fmean(_percent(found["best"])) if found["best"] else None,
                fmean(_percent(found["train"])),
                found["error"] or None,
                fmean(seconds) if seconds else None,
            )
        )
    return Table(
        "methods",
        f"Accuracy in percent after {results['epochs']} epochs (mean over seeds; best: of any "
        "epoch), with the setting that the search chose; the largest normalised "
        "||W^T W - I|| of any orthogonal weight at the end; seconds of an epoch that a method "
        "trains alone. The paper: vanilla about 66, the rest in a figure only.",
        (
            "method", "chosen", "test", "standard deviation", "best test", "train",
            "orthogonality error", "seconds an epoch",
        ),
        tuple(rows),
    )  # fmt: skip


def verdict_of(results: Mapping[str, Any]) -> str:
    """The accuracies, and the claims that they support, in words."""
    methods = results["methods"]
    many = len(next(iter(methods.values()))["final"])
    said = [f"{m} {fmean(_percent(found['final'])):.2f}" for m, found in methods.items()]
    text = (
        f"PlainNet-{results['depth']} on {results['data']}, {results['epochs']} epochs, batch "
        f"norms that begin with a bias of {results['shift']:g}, test accuracy in percent, mean of "
        f"{many} {'seed' if many == 1 else 'seeds'}: {', '.join(said)}."
    )
    claims = claims_of(results)
    for holds, head in ((True, "These claims hold"), (False, "These do not")):
        listed = [f"{c.text} ({c.measured})" for c in claims if c.holds == holds]
        if listed:
            text += f" {head}: {'; '.join(listed)}."
    off = [m for m, found in methods.items() if found["error"] is None]
    if off:
        return f"{text} Weights are not finite at the end: {', '.join(off)}."
    worst = max(methods, key=lambda method: methods[method]["error"])
    error = methods[worst]["error"]
    return f"{text} The largest orthogonality error at the end is {error:.1e}, of {worst}."


def draw_curves(canvas: "Canvas", results: Mapping[str, Any]) -> None:
    """Draw test accuracy (bold) and training accuracy (thin), in percent."""
    axis = canvas.subplots()
    for n, (method, found) in enumerate(results["methods"].items()):
        test, train = (_mean_curve(found["curves"], key) for key in ("test", "train"))
        epochs = range(1, len(test) + 1)
        style = "-" if n < COLOURS else "--"
        axis.plot(epochs, test, style, color=f"C{n % COLOURS}", linewidth=2, label=method)
        axis.plot(epochs, train, style, color=f"C{n % COLOURS}", linewidth=0.8)
    axis.set(xlabel="epoch", ylabel="accuracy in percent")
    axis.legend(ncols=2)


def _mean_curve(curves: Sequence[Sequence[Mapping[str, float]]], key: str) -> list[float]:
    return [fmean(_percent([row[key] for row in rows])) for rows in zip(*curves, strict=True)]


def _percent(parts: Sequence[float]) -> list[float]:
    return [100 * part for part in parts]
