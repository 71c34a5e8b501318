"""What the finished cells of a problem must be, so that a run can go on with them.

Everything that follows from something else in the files is made again and compared: the trials of a
search, its finalists, who runs in each heat of a race. So a list that was cut short is found, and
so are cells of earlier rules.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...runs.files import RunError
from ...runs.run import Run
from .heats import first_heat, last_heat, second_heat
from .methods import Method
from .race import FACTOR, Setting, climb, finalists, searched
from .standing import LAST, solved_at
from .suite import Entry, Size

Rule = tuple[str, Callable[[Any], bool]]
"""What a value must be, in words and as a test."""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool and abs(value) < HUGE


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < HUGE


NUMBER: Rule = ("a number", _is_number)
PERHAPS_NUMBER: Rule = ("a number or null", lambda v: v is None or _is_number(v))
NOT_NEGATIVE: Rule = ("a number of at least 0", lambda v: _is_number(v) and v >= 0)
RATE: Rule = ("a number above 0, or null", lambda v: v is None or (_is_number(v) and v > 0))
COUNT: Rule = ("a count", _is_count)
TEXT: Rule = ("text", lambda v: isinstance(v, str))
REASON: Rule = ("a reason or null", lambda v: v is None or (isinstance(v, str) and v != ""))
LIST: Rule = ("a list", lambda v: isinstance(v, list))
SHAPE: Rule = ("a list of counts", lambda v: isinstance(v, list) and all(map(_is_count, v)))

FACTS = {"shape": SHAPE, "start": NUMBER, "optimum": PERHAPS_NUMBER}
SETTING = {"exponent": NUMBER, "momentum": NUMBER, "lr": RATE}
TRIAL = SETTING | {"loss": PERHAPS_NUMBER}
SEARCH = FACTS | {
    "trials": LIST,
    "finalists": LIST,
    "slow": ("true or false", lambda v: type(v) is bool),
    "remark": REASON,
    "gradient_ms": RATE,
    "peak_bytes": ("a count or null", lambda v: v is None or _is_count(v)),
    "excuse": REASON,
}
RUN = SETTING | {"method": TEXT, "heat": COUNT, "curve": LIST, "failure": REASON}
LOOK = {"seconds": NOT_NEGATIVE, "steps": COUNT, "loss": NUMBER, "error": NOT_NEGATIVE}

HUGE = 1e100
"""No number of a run is beyond, and no sum or ratio of those below overflows."""
ALIKE = 1e-4
"""How far losses of the same point may differ from machine to machine, relative to them."""


RULES = 2
"""Goes up when cells of before are not of one table with those of now, and do not show it."""


def asked(entry: Entry, size: Size, seconds: float | None) -> dict[str, Any]:
    """What every cell of a problem records of what it was asked for."""
    return {
        "rules": RULES,
        "sizes": json.loads(json.dumps(entry.sizes(size))),  # as a file gives them back
        "seconds": seconds or entry.budget(size),
        "floor": entry.floor,
    }


class WrongError(Exception):
    """A rule that a cell breaks, and what was found there."""

    def __init__(self, rule: str, found: object) -> None:
        self.rule, self.found = rule, found


@dataclass(frozen=True)
class Finished:
    """The cells of a problem as this suite makes them.

    Args:
        methods: Who races.
        asked: From `asked`.
        deterministic: Whether every gradient is that of the whole loss.
        cuda: Whether it runs on a GPU.
    """

    methods: Mapping[str, Method]
    asked: Mapping[str, Any]
    deterministic: bool
    cuda: bool

    def check(self, name: str, run: Run) -> None:
        """Look at the cells of a problem that are there.

        Raises:
            RunError: If one is damaged, was asked for something else, or does not fit the others.
        """
        searches = {
            method: found
            for method in self.methods
            if (found := run.result(f"{name}_{method}")) is not None
        }
        race = run.result(f"{name}_race")
        whole = [(f"{name}_{method}", found) for method, found in searches.items()]
        if race is not None:
            whole.append((f"{name}_race", race))
        for cell, found in whole:
            try:
                self._check_facts(found, *whole[0])
                if found is race:
                    self._check_race(race, searches)
                else:
                    self._check_search(found, self.methods[cell.removeprefix(f"{name}_")])
            except WrongError as wrong:
                raise _refused(run.file(cell), name, wrong) from None

    def _check_facts(self, found: Mapping[str, Any], other: str, facts: Mapping[str, Any]) -> None:
        for key, wanted in self.asked.items():
            if found.get(key) != wanted:
                raise WrongError(f"made with {key!r} {wanted!r}, as this run is", found.get(key))
        _check_entries("a result", found, FACTS)
        for key in FACTS:
            if not _alike(found[key], facts[key]):
                rule = f"of the same {key!r} as {other}.json beside it, {facts[key]}"
                raise WrongError(rule, found[key])

    def _check_search(self, found: Mapping[str, Any], method: Method) -> None:
        _check_entries("a search", found, SEARCH)
        _check_each("a trial", found["trials"], TRIAL)
        _check_each("a finalist", found["finalists"], SETTING)
        slow, runs = found["slow"], found["excuse"] is None
        chosen: list[Setting] = []
        if not method.rates:
            chosen = [Setting(0, 0.0)] if runs else []
        elif runs or found["trials"]:
            scores = _scores(found["trials"], method, slow)
            chosen = finalists(scores, self.deterministic)[: 1 if slow else None]
        if [_setting(each) for each in found["finalists"]] != chosen:
            rule = "a search whose finalists are those of its trials"
            raise WrongError(rule, [_told(_setting(each)) for each in found["finalists"]])
        if runs != bool(chosen):
            raise WrongError("a search with finalists, or with an excuse for none", found["excuse"])
        if slow != (found["remark"] is not None):
            raise WrongError("a search that has a remark if it is slow", found["remark"])
        _check_rates([*found["trials"], *found["finalists"]], method)
        measured = {
            "gradient_ms": method.rates and bool(found["trials"]),
            "peak_bytes": method.rates and runs and self.cuda,
        }
        for key, wanted in measured.items():
            if wanted != (found[key] is not None):
                raise WrongError(
                    f"a search with {'a' if wanted else 'no'} number {key!r}", found[key]
                )

    def _check_race(
        self, race: Mapping[str, Any], searches: Mapping[str, Mapping[str, Any]]
    ) -> None:
        missing = [method for method in self.methods if method not in searches]
        if missing:
            rule = f"a race after all searches, and that of {', '.join(missing)} is not there"
            raise WrongError(rule, list(searches))
        _check_entries("a race", race, {"runs": LIST})
        runs = race["runs"]
        _check_each("a run", runs, RUN)
        for each in runs:
            _check_curve(each, race)
        first = {
            method: [_setting(each) for each in chosen]
            for method, chosen in first_heat(searches, race["start"], race["optimum"]).items()
        }
        _check_heat(1, runs, first)
        ours = [m for m in self.methods if self.methods[m].ours]
        for heat, chosen in ((2, second_heat), (LAST, last_heat)):
            before = {**race, "runs": [each for each in runs if each["heat"] < heat]}
            _check_heat(heat, runs, chosen(before, ours))
        if any(each["heat"] not in range(1, LAST + 1) for each in runs):
            heats = sorted({each["heat"] for each in runs})
            raise WrongError(f"a race of the heats 1 to {LAST}", heats)
        for name, method in self.methods.items():
            own = [each for each in runs if each["method"] == name]
            _check_rates([*searches[name]["finalists"], *own], method)


def _refused(path: Path, name: str, wrong: WrongError) -> RunError:
    cells = path.parent / f"{name}_*"
    return RunError(
        f"{path} must be {wrong.rule}: got {wrong.found!r:.100}. It is damaged, or of another run "
        f"or suite. Restore it; or remove all cells of that problem, {cells}, which --resume then "
        "makes again; or write elsewhere with --out."
    )


def _check_entries(what: str, value: Any, rules: Mapping[str, Rule]) -> None:
    if not isinstance(value, dict):
        raise WrongError(f"of JSON objects where {what} is expected", value)
    for key, (words, good) in rules.items():
        if key not in value:
            raise WrongError(f"{what} with an entry {key!r}", sorted(value))
        if not good(value[key]):
            raise WrongError(f"{what} whose {key!r} is {words}", value[key])


def _check_each(what: str, values: Sequence[Any], rules: Mapping[str, Rule]) -> None:
    for value in values:
        _check_entries(what, value, rules)


def _scores(
    trials: Sequence[Mapping[str, Any]], method: Method, slow: bool
) -> dict[Setting, float]:
    """The trials by their settings, none too few and none too many."""
    scores = {_setting(t): math.inf if t["loss"] is None else t["loss"] for t in trials}
    momenta, most = searched(method, slow)
    again: list[Setting] = []
    try:
        for momentum in momenta:
            found = climb(lambda j, m=momentum: scores[Setting(j, m)], most)  # type: ignore[misc]
            again += [Setting(j, momentum) for j in found]
    except KeyError as error:
        raise WrongError(
            f"a search with a trial at {_told(error.args[0])}", _all_told(scores)
        ) from None
    if again != [_setting(each) for each in trials]:
        rule = f"a search whose trials are those at {', '.join(_all_told(again))}"
        raise WrongError(rule, _all_told(map(_setting, trials)))
    return scores


def _check_rates(settings: Iterable[Mapping[str, Any]], method: Method) -> None:
    """Learning rates are those of their exponents and momenta, from one base."""
    base = None
    for each in settings:
        if (each["lr"] is not None) != method.rates:
            raise WrongError(
                f"of runs with {'a' if method.rates else 'no'} learning rate", each["lr"]
            )
        if method.rates:
            part = FACTOR ** each["exponent"] * (1 - each["momentum"])
            base = each["lr"] / part if base is None else base
            if not math.isclose(each["lr"], base * part, rel_tol=1e-9):
                told = _told(_setting(each))
                rule = f"of runs with the learning rate {base * part:.6g} at {told}"
                raise WrongError(rule, each["lr"])


def _check_curve(run: Mapping[str, Any], race: Mapping[str, Any]) -> None:
    """A run goes on from its start to its end, unless it failed."""
    curve = run["curve"]
    _check_each("a look", curve, LOOK)
    told = f"of {run['method']} at {_told(_setting(run))}"
    first = [(look["seconds"], look["steps"]) for look in curve[:1]]
    if first not in ([], [(0, 0)]):
        raise WrongError(f"a race in which the run {told} is seen at its start", first[0])
    for before, after in pairwise(curve):
        solver = run["lr"] is None  # starts anew for each look
        backward = after["seconds"] < before["seconds"] or after["steps"] <= before["steps"]
        if after["steps"] == 0 or (backward and not solver):
            raise WrongError(f"a race in which the run {told} goes forward", after)
    if run["failure"] is not None:
        return
    last = curve[-1] if len(curve) > 1 else {"seconds": 0.0, "loss": math.inf}
    early = last["seconds"] < race["seconds"] and last["loss"] > solved_at(race)
    if len(curve) < 2 or (early and run["lr"] is not None):
        rule = f"a race in which the run {told} takes {race['seconds']} seconds, is solved or fails"
        raise WrongError(rule, f"{last['seconds']:.3g} seconds")


def _check_heat(
    number: int, runs: Sequence[Mapping[str, Any]], settings: Mapping[str, Sequence[Setting]]
) -> None:
    found = [(each["method"], _setting(each)) for each in runs if each["heat"] == number]
    wanted = [(method, setting) for method, chosen in settings.items() for setting in chosen]
    for method, setting in wanted:
        if (method, setting) not in found:
            rule = f"a race whose heat {number} has a run of {method} at {_told(setting)}"
            raise WrongError(rule, f"{len(found)} runs, not {len(wanted)}")
    if found != wanted:
        rule = f"a race whose heat {number} has {len(wanted)} runs, by method"
        raise WrongError(rule, f"{len(found)} runs")


def _alike(value: Any, other: Any) -> bool:
    if _is_number(value) and _is_number(other):
        return math.isclose(value, other, rel_tol=ALIKE, abs_tol=1e-9)
    return bool(value == other)


def _setting(each: Mapping[str, Any]) -> Setting:
    return Setting(each["exponent"], each["momentum"])


def _told(setting: Setting) -> str:
    return f"exponent {setting.exponent:g}, momentum {setting.momentum:g}"


def _all_told(settings: Iterable[Setting]) -> list[str]:
    return [f"({_told(setting)})" for setting in settings]
