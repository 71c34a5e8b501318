"""The second heat of a race: the leaders run again, at rates between those of the first.

Rates of the first are half a factor apart, so that of two methods which are close the one wins
whose grid has met its best rate. A quarter of a factor is left.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

from .race import Setting
from .standing import AUTO, best_final, final, first, with_gaps

LEADERS = 3
"""How many of ours run again at most, and how many rivals."""
DIGITS = 0.75
"""The part of the target's digits, -log10 of the gap, that a leader has at its end."""
NEAR, FARTHER = 0.25, 0.5
"""Factors from a leader's best rate: on both sides, and beyond an end of the rates that ran."""


def second_heat(race: Mapping[str, Any], ours: Collection[str]) -> dict[str, list[Setting]]:
    """Who runs again, with what; of everybody by the same rule.

    The target is the best final gap of the rivals, or the floor where it is below. In front are
    those who come to it, the first of them first, then the others by their final gaps. Three of
    ours and three rivals lead at most: of ours the first of "auto" and then the others in front,
    of the rivals those in front; all but the first of a side only if they come to the target or end
    with at least `DIGITS` of its digits. The best run of each leader, by the same order, has its
    rate changed by a quarter of a factor, up and down; and where no higher rate ran with that
    momentum, or no lower one, by half a factor in that direction.

    Args:
        race: The race of a problem after its first heat.
        ours: Names of our methods; the others are rivals.
    """
    runs = with_gaps(race)
    rivals = [run for run in runs if run["method"] not in ours]
    target = best_final(rivals, race["floor"]) or best_final(runs, race["floor"])
    if target is None:
        return {}
    best: dict[str, Mapping[str, Any]] = {}
    place: dict[str, tuple[float, float]] = {}
    for method in dict.fromkeys(run["method"] for run in runs):
        seconds, _, run = first([r for r in runs if r["method"] == method], target)
        assert run is not None
        if math.isfinite(final(run)):
            best[method] = run
            place[method] = (math.inf if seconds is None else seconds, final(run))
    order = sorted(best, key=lambda method: place[method])
    auto = [m for m in order if m in AUTO][:1]
    leaders = []
    for side in (
        [*auto, *(m for m in order if m in ours and m not in auto)],
        [m for m in order if m not in ours],
    ):
        close = [m for m in side[1:] if place[m][0] < math.inf or final(best[m]) <= target**DIGITS]
        leaders += [*side[:1], *close][:LEADERS]
    return {m: _around(best[m], runs) for m in leaders if best[m]["lr"] is not None}


def _around(best: Mapping[str, Any], runs: list[dict[str, Any]]) -> list[Setting]:
    """A setting's neighbours that have not run."""
    exponents = [
        run["exponent"]
        for run in runs
        if (run["method"], run["momentum"]) == (best["method"], best["momentum"])
    ]
    steps = [NEAR, -NEAR]
    if best["exponent"] == max(exponents):
        steps.append(FARTHER)
    if best["exponent"] == min(exponents):
        steps.append(-FARTHER)
    return [Setting(best["exponent"] + step, best["momentum"]) for step in steps]
