"""Who runs in a race: all in its first heat, the leaders at other rates in its second.

Rates of the first are half a factor apart, so that of two methods which are close the one wins
whose grid has met its best rate. A quarter of a factor is left after the second. In the last heat
those in front run several times with the best settings of each, and what they do there counts.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from .race import SMALLEST_GAP, Setting, hopeless
from .standing import AUTO, best_final, final, first, with_gaps

LEADERS = 3
"""How many of ours run again at most, and how many rivals."""
REPEATS = 3
"""Runs of each setting in the last heat, with batches in as many orders."""
DIGITS = 0.75
"""The part of another gap's digits, -log10 of it, that a gap must have to be close to it."""
NEAR, FARTHER = 0.25, 0.5
"""Factors from a leader's best rate: on both sides, and beyond an end of the rates that ran."""


def first_heat(
    searches: Mapping[str, Mapping[str, Any]], start: float, optimum: float | None
) -> dict[str, list[dict[str, Any]]]:
    """The finalists of all, without those who cannot win.

    One who is far behind the best trial of all has his best setting only. With the other momentum a
    method runs where its best trial with that is close to the best with the first: there the choice
    between them may be luck. Where the optimum is not known, that is not known either.

    Args:
        searches: Results of the searches, by the name of the method.
        start: The first loss.
        optimum: The least loss, if it is known.
    """
    least = {name: _least(found["trials"]) for name, found in searches.items()}
    best = min(least.values())

    def may_win(name: str, momentum: float) -> bool:
        if optimum is None:
            return True
        trials = [t for t in searches[name]["trials"] if t["momentum"] == momentum]
        gaps = ((loss - optimum) / (start - optimum) for loss in (_least(trials), least[name]))
        return _is_close(*gaps)

    return {
        name: found["finalists"][:1]
        if hopeless(least[name], start, best, optimum)
        else [each for each in found["finalists"] if may_win(name, each["momentum"])]
        for name, found in searches.items()
    }


def _least(trials: Iterable[Mapping[str, Any]]) -> float:
    return min((t["loss"] for t in trials if t["loss"] is not None), default=math.inf)


def _is_close(gap: float, to: float) -> bool:
    """Whether it has `DIGITS` of the other's digits; of gaps above one none is close to another."""
    return gap <= max(to, SMALLEST_GAP) ** (DIGITS if to < 1 else 1)


def second_heat(race: Mapping[str, Any], ours: Collection[str]) -> dict[str, list[Setting]]:
    """Who runs again, with what; the same rates for ours and rivals, and as many places.

    The best run of each leader (`_leaders`) has its rate changed by a quarter of a factor, up and
    down; and where no higher rate ran with that momentum, or no lower one, by half a factor in that
    direction.

    Args:
        race: The race of a problem after its first heat.
        ours: Names of our methods; the others are rivals.
    """
    leaders = _leaders(race, ours)
    return {m: _around(best, race["runs"]) for m, best in leaders.items() if best["lr"] is not None}


def last_heat(race: Mapping[str, Any], ours: Collection[str]) -> dict[str, list[Setting]]:
    """Who runs in the end, each several times: the leaders with their best settings of both heats.

    Those are the one that was first at the target, and the one with the least last gap: a rate that
    comes there first may be too noisy to go lower. Gaps below the floor are alike.

    What they do then counts, and what made them leaders does not: the best of many runs was in part
    lucky, with the clock as with the batches, and those who enter more runs are so more often.

    Args:
        race: The race of a problem after its second heat.
        ours: Names of our methods; the others are rivals.
    """
    runs, chosen = with_gaps(race), {}
    for method, best in _leaders(race, ours).items():
        own = [best, *(run for run in runs if run["method"] == method)]
        lowest = min(own, key=lambda run: _end(run, race["floor"]))
        settings = [Setting(run["exponent"], run["momentum"]) for run in (best, lowest)]
        chosen[method] = [s for s in dict.fromkeys(settings) for _ in range(REPEATS)]
    return chosen


def _leaders(race: Mapping[str, Any], ours: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """The best runs of those in front, three of ours and three rivals at most.

    The target is the best final gap of the rivals, or the floor where it is below. In front are
    those who come to it, the first of them first, then the others by their final gaps. Of ours the
    first of "auto" leads, then the choice by hand with the least last gap, which "auto" has to come
    to, then the others of "auto", as the best of them counts, and then those in front, of the
    rivals those in front; all but the first of a side only if they come to the target or end close
    to it.
    """
    runs = with_gaps(race)
    rivals = [[run] for run in runs if run["method"] not in ours]
    target = best_final(rivals, race["floor"]) or best_final([[run] for run in runs], race["floor"])
    if target is None:
        return {}
    best: dict[str, Mapping[str, Any]] = {}
    place: dict[str, tuple[float, float]] = {}
    for method in dict.fromkeys(run["method"] for run in runs):
        seconds, _, entry = first([[r] for r in runs if r["method"] == method], target)
        assert entry is not None
        if math.isfinite(final(entry)):
            best[method] = entry[0]
            place[method] = (math.inf if seconds is None else seconds, final(entry))
    order = sorted(best, key=lambda method: place[method])
    by_hand = [m for m in order if m in ours and m not in AUTO]
    least = {
        m: min(_end(run, race["floor"]) for run in runs if run["method"] == m) for m in by_hand
    }
    auto = [m for m in order if m in AUTO]
    first_ones = [*auto[:1], *sorted(by_hand, key=lambda m: least[m])[:1], *auto[1:]]
    leaders: list[str] = []
    for side in (
        [*first_ones, *(m for m in order if m in ours and m not in first_ones)],
        [m for m in order if m not in ours],
    ):
        close = [m for m in side[1:] if place[m][0] < math.inf or _is_close(place[m][1], target)]
        leaders += [*side[:1], *close][:LEADERS]
    return {m: best[m] for m in leaders}


def _end(run: Mapping[str, Any], floor: float) -> float:
    """The last gap of a run; those below the floor are alike."""
    return max(floor, final([run]))


def _around(best: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> list[Setting]:
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
