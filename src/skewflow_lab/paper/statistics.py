"""Means over seeds, and differences between methods with the same seeds."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and standard deviation over the seeds.

    Example:
        >>> spread([1.0, 3.0]), spread([5.0])
        ({'mean': 2.0, 'sd': 1.4142135623730951}, {'mean': 5.0, 'sd': None})
    """
    return {"mean": fmean(values), "sd": stdev(values) if len(values) > 1 else None}


def difference(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float | None]:
    """Mean difference over the seeds, and its standard error.

    Example:
        >>> difference([2.0, 5.0], [1.0, 2.0])
        {'mean': 2.0, 'error': 1.0}
    """
    each = [a - b for a, b in zip(ours, theirs, strict=True)]
    error = stdev(each) / len(each) ** 0.5 if len(each) > 1 else None
    return {"mean": fmean(each), "error": error}


def beats(diff: Mapping[str, float | None]) -> bool:
    """Whether a difference is above zero by more than two standard errors, if it has one."""
    return (diff["mean"] or 0.0) > 2 * (diff["error"] or 0.0)


def loses(diff: Mapping[str, float | None]) -> bool:
    """Whether a difference is below zero by more than two standard errors, if it has one."""
    return (diff["mean"] or 0.0) < -2 * (diff["error"] or 0.0)


def compared(diff: Mapping[str, float | None]) -> str:
    """The difference in words.

    Example:
        >>> compared({"mean": 0.5, "error": 0.1}), compared({"mean": 0.1, "error": 0.1})
        ('is better (+0.50 ± 0.10)', 'is level (+0.10 ± 0.10)')
    """
    word = "is better" if beats(diff) else "is worse" if loses(diff) else "is level"
    return f"{word} ({points(diff)})"


def points(diff: Mapping[str, float | None]) -> str:
    """A difference in points with its standard error."""
    error = diff["error"]
    return f"{diff['mean']:+.2f}" + ("" if error is None else f" ± {error:.2f}")


def percent(values: Mapping[str, float | None]) -> str:
    """A mean in per cent with its standard deviation."""
    return f"{values['mean']:.2f}%" + ("" if values["sd"] is None else f" ± {values['sd']:.2f}")
