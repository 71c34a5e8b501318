"""What the searches say together: spans of the best rates, rates in common, the default's loss."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skewflow.tournaments import edge_probability

from ...runs.experiment import Figure, Table
from .search import DEFAULT
from .tasks import DETERMINISTIC, RECURRENT, TASKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

NEAR = 1.1
"""Losses up to this times the best one count as good."""
LAWS = {
    "rms": "root-mean-square angle",
    "spectral": "angle of every plane",
    "unbiased": "unbiased, c Omega",
    "root": "sqrt(c) Omega",
    "same": "Omega",
}
ANGLES = ("rms", "spectral")

Rates = dict[float, float]
"""Losses by rate, without those that are not finite."""


def weight(d: int, s: int | str) -> float:
    """The weight c = (d - 1) / (s - 1), one for exact steps."""
    return 1.0 if isinstance(s, str) else float(1 / edge_probability(d, s))


def rates_of(setting: Mapping[str, Any]) -> dict[str, Rates]:
    """The losses of a task at one s and d, by law and rate.

    Steps by sqrt(c) Omega and by Omega are those of the unbiased law at other rates.
    """
    c = weight(setting["d"], setting["s"])
    found: dict[str, Rates] = {}
    for law, rates in setting["laws"].items():
        found[law] = {2.0 ** r["exponent"]: r["loss"] for r in rates if r["loss"] is not None}
    unbiased = found["unbiased"]
    found["root"] = {rate * c**0.5: loss for rate, loss in unbiased.items()}
    found["same"] = {rate * c: loss for rate, loss in unbiased.items()}
    return found


def best(rates: Rates) -> float:
    """The rate of the least loss."""
    return min(rates, key=lambda rate: rates[rate])


def summary(cells: Sequence[Mapping[str, Any]], num_steps: int, data: str) -> dict[str, Any]:
    """Every search, and for each task and law how far the best rates lie apart."""
    settings: list[dict[str, Any]] = []
    for cell in cells:
        laws: dict[Any, dict[str, Any]] = {}
        defaults: dict[Any, dict[str, Any]] = {}
        for found in cell["settings"]:
            laws.setdefault(found["s"], {})[found["law"]] = found["rates"]
            if "default" in found:
                defaults.setdefault(found["s"], {})[found["law"]] = found["default"]
        both = {"task": cell["task"], "d": cell["d"]}
        settings += [both | {"s": s, "laws": laws[s], "default": defaults[s]} for s in laws]
    tasks = [name for name in TASKS if any(z["task"] == name for z in settings)]
    spans = [_span(name, law, settings) for name in tasks for law in LAWS]
    return {
        "num_steps": num_steps,
        "data": data,
        "default": DEFAULT,
        "settings": settings,
        "spans": spans,
        "defaults": [_default(z) for z in settings if z["task"] not in RECURRENT],
        "recurrent": [_recurrent(z, law) for z in _of(settings, RECURRENT) for law in ANGLES],
    }


def _of(settings: Iterable[dict[str, Any]], tasks: Collection[str]) -> list[dict[str, Any]]:
    return [z for z in settings if z["task"] in tasks]


def _span(task: str, law: str, settings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The best rates of a law on a task, and the rates that are good at all s and d."""
    found = [rates_of(z)[law] for z in _of(settings, [task])]
    bests = [best(rates) for rates in found]
    good = [{r for r, x in rates.items() if x <= NEAR * rates[best(rates)]} for rates in found]
    common = sorted(set.intersection(*good)) if law in ANGLES else []
    return {
        "task": task,
        "law": law,
        "least": min(bests),
        "largest": max(bests),
        "span": max(bests) / min(bests),
        "common": common,
    }


def _default(setting: Mapping[str, Any]) -> dict[str, Any]:
    """What the default rate reaches, beside the best of all laws and rates."""
    found = rates_of(setting)
    own = [loss for loss in setting["default"].values() if loss is not None]
    least = min([*own, *(min(rates.values()) for rates in found.values())])
    row: dict[str, Any] = {key: setting[key] for key in ("task", "d", "s")} | {"best": least}
    for law in ANGLES:
        row[law] = setting["default"][law]
        row[f"{law} at its best"] = found[law][best(found[law])]
    return row


def _recurrent(setting: Mapping[str, Any], law: str) -> dict[str, Any]:
    """The good angles of a recurrent net, times the length of its sequences."""
    rates, length = rates_of(setting)[law], RECURRENT[setting["task"]]
    good = [rate for rate, loss in rates.items() if loss <= NEAR * rates[best(rates)]]
    return {
        **{key: setting[key] for key in ("task", "d", "s")},
        "law": law,
        "best times length": best(rates) * length,
        "largest good times length": max(good) * length,
        "loss": rates[best(rates)],
        "loss by the rule": setting["default"][law],
    }


def kind(task: str) -> str:
    """What the acceptance asks of a task."""
    if task in RECURRENT:
        return "recurrent"
    return "deterministic" if task in DETERMINISTIC else "stochastic or a network"


def overall(results: Mapping[str, Any], law: str) -> float:
    """The span of the best rates of a law over all tasks but recurrent nets."""
    rows = [z for z in results["spans"] if z["law"] == law and kind(z["task"]) != "recurrent"]
    return float(max(z["largest"] for z in rows) / min(z["least"] for z in rows))


def within(results: Mapping[str, Any], law: str) -> tuple[int, int, list[str]]:
    """How many stochastic settings and networks the default brings to `NEAR`, of how many.

    The others are named, with their loss over the best one.
    """
    rows = [z for z in results["defaults"] if z["task"] not in DETERMINISTIC]
    far = [z for z in rows if z[law] is None or z[law] > NEAR * z["best"]]
    names = [
        f"{z['task']} at d = {z['d']}, s = {z['s']}"
        + ("" if z[law] is None else f" ({z[law] / z['best']:.3g} times)")
        for z in far
    ]
    return len(rows) - len(far), len(rows), names


def verdict(results: Mapping[str, Any]) -> str:
    """How far best rates lie apart, where none is good at all s and d, and the default."""
    told = ", ".join(f"{overall(results, law):.3g} ({text})" for law, text in LAWS.items())
    lines = [f"Over all tasks but recurrent nets the best rate spans a factor of {told}."]
    for law in ANGLES:
        rows = [z for z in results["spans"] if z["law"] == law]
        for name in ("stochastic or a network", "deterministic", "recurrent"):
            of_kind = [z for z in rows if kind(z["task"]) == name]
            if not of_kind:
                continue
            spans = ", ".join(f"{z['task']} {z['span']:.3g}" for z in of_kind)
            none = [z["task"] for z in of_kind if not z["common"]]
            lacking = f"; no rate is good at all s and d on {', '.join(none)}" if none else ""
            lines.append(f"By {LAWS[law]}, {name}: {spans}{lacking}.")
        good, total, far = within(results, law)
        but = f", not on {'; '.join(far)}" if far else ""
        lines.append(
            f"At lr = {results['default']:g} it ends within 10 % of the best loss of any law and "
            f"rate in {good} of {total} stochastic settings and networks{but}."
        )
    return " ".join(lines)


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Spans of each law, the best rates, the default, and the recurrent net."""
    spans = tuple(
        (
            z["task"],
            LAWS[z["law"]],
            z["least"],
            z["largest"],
            z["span"],
            ", ".join(f"1/{1 / rate:.3g}" for rate in z["common"]) or None,
        )
        for z in results["spans"]
    )
    rows = []
    for z in results["settings"]:
        found = rates_of(z)
        row: list[Any] = [z["task"], z["d"], z["s"]]
        for law in LAWS:
            row += [best(found[law])]
        row += [found[law][best(found[law])] for law in ("rms", "spectral", "unbiased")]
        rows.append(tuple(row))
    keys = ("task", "d", "s", "best", "rms", "rms at its best", "spectral", "spectral at its best")
    defaults = tuple(tuple(z[key] for key in keys) for z in results["defaults"])
    words = tuple(results["recurrent"][0]) if results["recurrent"] else ("task",)
    recurrent = tuple(tuple(z[key] for key in words) for z in results["recurrent"])
    loss = "what is left of the gap, of images the squared error, of networks the cross entropy"
    return [
        Table(
            "spans",
            f"The best rates of {results['num_steps']} steps, falling to zero on a line, over all "
            "s at one d and all d at one s; and the rates whose final loss is within 10 % of the "
            "best at each of them.",
            ("task", "law", "least best rate", "largest", "span", "good at all s and d"),
            spans,
        ),
        Table(
            "best",
            f"The best rate among powers of two, and the final loss there: {loss}.",
            (
                *("task", "d", "s"),
                *(f"lr: {law}" for law in LAWS.values()),
                *(f"loss: {law}" for law in ("rms", "spectral", "unbiased")),
            ),
            tuple(rows),
        ),
        Table(
            "default",
            f"The loss at lr = {results['default']:g}, beside the best of any law and rate.",
            ("task", "d", "s", "best of all", *(f"loss: {key}" for key in keys[4:])),
            defaults,
        ),
        Table(
            "recurrent",
            "Angles of a recurrent net, times the length of its sequences: the best one, and the "
            "largest whose final loss is within 10 % of the best. The rule is the default rate "
            "divided by a quarter of the length.",
            words,
            recurrent,
        ),
    ]


def figures(results: Mapping[str, Any]) -> list[Figure]:
    """Losses over rates, a line for each s and d: angles above, the unbiased law below."""
    tasks = list(dict.fromkeys(z["task"] for z in results["settings"]))
    laws = ("rms", "spectral", "unbiased")

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots(len(laws), len(tasks), squeeze=False, sharey="col")
        for row, law in zip(axes, laws, strict=True):
            for axis, task in zip(row, tasks, strict=True):
                for z in _of(results["settings"], [task]):
                    rates = rates_of(z)[law]
                    colour = {2: "C0", 8: "C1", 32: "C2"}.get(z["s"], "C3")
                    style = {64: ":", 256: "--", 1024: "-."}.get(z["d"], "-")
                    label = f"s = {z['s']}, d = {z['d']}"
                    axis.loglog(
                        [*rates], [*rates.values()], style, color=colour, label=label, base=2
                    )
                axis.set_yscale("log", base=10)
                if law == laws[0]:
                    axis.set_title(task, fontsize=9)
                axis.tick_params(labelsize=6, which="both")
            row[0].set_ylabel(f"final loss\n{LAWS[law]}", fontsize=8)
        for axis in axes[-1]:
            axis.set_xlabel("learning rate", fontsize=8)
        handles, labels = axes[0][0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=7)

    caption = (
        "Final loss over the learning rate, a line for each block size and size of matrices. With "
        "an angle the minima stand above one another; under the unbiased law they do not."
    )
    return [Figure("learning-rate", caption, draw, (2.0 * len(tasks) + 1, 6.5))]
