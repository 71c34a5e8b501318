"""Comparisons of methods over equal seeds, and what they say of the paper's claims."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

import numpy as np

OURS = "stoch-ortRNN"
"""The method of the paper."""
RIVALS = ("exact-ortRNN", "vanRNN", "ortinit-vanRNN", "affine")
"""The methods that the paper compares it with."""
TRAINED = ("stoch-ortRNN", "stoch-many-ortRNN", "stoch-uniform-ortRNN", "exact-ortRNN")
FROZEN = "frozen-ortRNN"
RESAMPLES = 10_000
LEVEL = 0.95
"""Coverage of the intervals."""
ALL_SEEDS = 5
"""With fewer seeds a bootstrap interval is too short to decide anything."""

Verdict = Literal["reproduced", "refuted", "undecided"]
Methods = Mapping[str, Sequence[Mapping[str, Any]]]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The bootstrap interval of the mean, from percentiles of resampled means.

    Example:
        >>> interval([1.0, 1.0, 1.0])
        (1.0, 1.0)
    """
    rng = np.random.default_rng(0)
    drawn = rng.choice(np.array(values), (RESAMPLES, len(values))).mean(axis=1)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def beside_affine(groups: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], Methods]]:
    """Each group with its methods, and with those of its task that have no size."""
    none = {group["task"]: group["methods"] for group in groups if not group["hidden"]}
    return [(group, {**none.get(group["task"], {}), **group["methods"]}) for group in groups]


def paired(methods: Methods, ours: str, theirs: str) -> dict[str, Any] | None:
    """The mean difference of two methods over the seeds that both have, and its interval."""
    by_seed = [{run["seed"]: run["score"] for run in methods[label]} for label in (ours, theirs)]
    seeds = sorted(set(by_seed[0]) & set(by_seed[1]))
    if not seeds:
        return None
    each = [by_seed[0][seed] - by_seed[1][seed] for seed in seeds]
    low, high = interval(each)
    return {
        "ours": ours,
        "theirs": theirs,
        "seeds": len(seeds),
        "wins": sum(value > 0 for value in each),
        "mean": fmean(each),
        "low": low,
        "high": high,
        "decided": len(seeds) >= ALL_SEEDS and not low <= 0 <= high,
    }


def comparisons(methods: Methods) -> list[dict[str, Any]]:
    """The paper's method against all others, and trained transitions against frozen ones."""
    pairs = [(OURS, other) for other in methods if other != OURS] if OURS in methods else []
    if FROZEN in methods:
        pairs += [(ours, FROZEN) for ours in TRAINED if ours in methods and ours != OURS]
    return _all_paired(methods, pairs)


def _all_paired(methods: Methods, pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    found = (paired(methods, ours, theirs) for ours, theirs in pairs)
    return [pair for pair in found if pair is not None]


def best_of_all(methods: Methods) -> tuple[Verdict, list[dict[str, Any]]] | None:
    """Claim e: the paper's method is better than those that the paper compares it with."""
    rivals = [label for label in methods if label.split(" ")[0] in RIVALS]  # "ortinit-vanRNN p=20"
    if OURS not in methods:
        return None
    found = _all_paired(methods, [(OURS, label) for label in rivals])
    if not found:
        return None
    if any(pair["decided"] and pair["mean"] < 0 for pair in found):
        return "refuted", found
    if all(pair["decided"] and pair["mean"] > 0 for pair in found):
        return "reproduced", found
    return "undecided", found


def fails(methods: Methods, label: str = "vanRNN") -> tuple[Verdict, float, float] | None:
    """Claim f: a method does not train: its score does not rise above that of its start.

    It is refuted if the interval of the rise lies above zero, reproduced if the interval lies below
    a tenth of the best method's rise.
    """
    if label not in methods:
        return None
    rises = {
        name: [run["score"] - run["curve"][0][2] for run in runs] for name, runs in methods.items()
    }
    low, high = interval(rises[label])
    best = max(fmean(values) for values in rises.values())
    if len(rises[label]) < ALL_SEEDS or best <= 0:
        return "undecided", low, high
    if low > 0:
        return "refuted", low, high
    return ("reproduced" if high < best / 10 else "undecided"), low, high


def below_frozen(methods: Methods) -> list[dict[str, Any]]:
    """The trained orthogonal methods that end below the frozen transition."""
    if FROZEN not in methods:
        return []
    pairs = _all_paired(methods, [(ours, FROZEN) for ours in TRAINED if ours in methods])
    return [pair for pair in pairs if pair["decided"] and pair["mean"] < 0]
