"""Who runs again in the second heat of a race, at which rates, and who in the last."""

import pytest

from skewflow_lab.bench.quality.heats import LEADERS, REPEATS, first_heat, last_heat, second_heat

OURS = ("auto", "auto-adam", "s=2", "s=16", "s=64", "dense")


def search(*losses, other=()):
    """Trials with these losses, and others with the other momentum; finalists of both."""
    trials = [{"loss": loss, "momentum": 0.9} for loss in losses]
    trials += [{"loss": loss, "momentum": 0.0} for loss in other]
    finalists = [{"exponent": e, "momentum": 0.9} for e in (0, 0.5)]
    return {"trials": trials, "finalists": [*finalists, {"exponent": 0, "momentum": 0.0}]}


def heat(searches, optimum=0.0):
    found = first_heat(searches, 1.0, optimum)
    return {m: [(s["exponent"], s["momentum"]) for s in found[m]] for m in found}


BEST, NEAR, OTHER = (0, 0.9), (0.5, 0.9), (0, 0.0)


def test_who_is_far_behind_races_with_his_best_setting_alone():
    # Gaps of 1e-6, 2e-2 and 5e-3 of the start's; one that failed; one without trials.
    searches = {"fast": search(1e-6, 0.1), "slow": search(None, 0.02), "fair": search(5e-3)}
    searches |= {"lost": search(None), "other": search()}
    found = heat(searches)
    assert found["slow"] == found["lost"] == found["other"] == [BEST]
    assert found["fast"] == found["fair"] == [BEST, NEAR]
    unknown = heat(searches, optimum=None)
    assert unknown["slow"] == [BEST, NEAR, OTHER]  # only the start counts


def test_the_other_momentum_races_where_the_choice_may_be_luck():
    gaps = {"close": 0.9e-3, "behind": 1.1e-3, "lost": None}
    found = heat({name: search(1e-4, other=(0.5, gap)) for name, gap in gaps.items()})
    assert found == {"close": [BEST, NEAR, OTHER], "behind": [BEST, NEAR], "lost": [BEST, NEAR]}
    below = search(-1e-9, other=(1e-8,))  # an optimum that is known to rounding
    assert heat({"solved": below}) == {"solved": [BEST, NEAR, OTHER]}


def run(method, *gaps, exponent=0.0, momentum=0.0, failure=None, lr=0.1):
    curve = [
        {"seconds": float(n), "steps": n, "loss": gap, "error": 0.0}
        for n, gap in enumerate((1.0, *gaps))
    ]
    setting = {"exponent": exponent, "momentum": momentum, "lr": lr}
    return {"method": method, "curve": curve, "failure": failure, **setting}


def again(*runs, optimum=0.0, floor=1e-6):
    race = {"start": 1.0, "optimum": optimum, "floor": floor, "runs": list(runs)}
    found = second_heat(race, OURS)
    return {m: [(s.exponent, s.momentum) for s in settings] for m, settings in found.items()}


def test_a_leader_runs_a_quarter_factor_on_both_sides_of_its_best_rate():
    grid = [run("pogo", gap, exponent=e) for e, gap in ((1, 0.1), (1.5, 0.2), (0.5, 0.3))]
    assert again(*grid) == {"pogo": [(1.25, 0.0), (0.75, 0.0)]}


def test_beyond_the_outermost_rate_it_runs_half_a_factor_farther():
    gaps = {0.5: 0.3, 1: 0.2, 1.5: 0.1}
    grid = [run("pogo", gap, exponent=e, momentum=0.9) for e, gap in gaps.items()]
    higher = [(1.75, 0.9), (1.25, 0.9), (2.0, 0.9)]
    assert again(*grid) == {"pogo": higher}
    other = run("pogo", 0.3, exponent=2, momentum=0.0)  # of another momentum: no neighbour
    assert again(*grid, other) == {"pogo": higher}
    low = [run("pogo", 0.1, exponent=-1), run("pogo", 0.2, exponent=-0.5)]
    assert again(*low) == {"pogo": [(-0.75, 0.0), (-1.25, 0.0), (-1.5, 0.0)]}


def test_a_single_rate_is_the_outermost_one_on_both_sides():
    assert again(run("pogo", 0.1)) == {"pogo": [(e, 0.0) for e in (0.25, -0.25, 0.5, -0.5)]}


def test_the_best_run_is_the_first_at_the_target_before_the_best_at_the_end():
    soon = run("auto", 0.01, 0.01, exponent=1)
    late = run("auto", 0.5, 1e-9, exponent=0)
    rival = run("pogo", 0.5, 0.02)
    assert again(soon, late, rival)["auto"][0] == (1.25, 0.0)
    assert again(soon, late, run("pogo", 0.5, 1e-3))["auto"][0] == (0.25, 0.0)


def test_auto_and_the_best_rival_lead_however_far_behind_they_are():
    assert list(again(run("auto", 0.9), run("pogo", 1e-5), run("geoopt", 0.9))) == ["auto", "pogo"]
    far = [run("auto", 1e-6), run("dense", 1e-6), run("pogo", 0.8), run("geoopt", 0.9)]
    assert set(again(*far)) == {"auto", "dense", "pogo"}


def test_who_ends_with_three_quarters_of_the_digits_is_close():
    rivals = {"a": 1e-4, "b": 0.9e-3, "c": 1.1e-3}
    assert list(again(*(run(name, gap) for name, gap in rivals.items()))) == ["a", "b"]
    passed = run("c", 1e-4, 1e-2)  # it came to the target and went away, which is no arrival
    assert list(again(run("a", 1e-4), run("b", 0.9e-3), passed)) == ["a", "b"]


def test_of_both_sides_as_many_lead_at_most():
    own = [run(name, 1e-6 * n) for n, name in enumerate(OURS, 1)]
    rivals = [run(name, 1e-6 * n) for n, name in enumerate("abcde", 1)]
    assert list(again(*reversed(own), *rivals)) == ["auto", "s=2", "auto-adam", "a", "b", "c"]
    behind = [run("auto", 0.5), *own[1:]]
    assert list(again(*behind)) == ["auto-adam", "s=2", "s=16"] and LEADERS == 3
    assert list(again(behind[0], *own[2:])) == ["auto", "s=2", "s=16"]


def test_nobody_runs_again_who_failed_or_has_no_rate():
    lost = run("pogo", failure="lost: not finite after 3 steps")
    assert again(lost) == {} and again() == {}
    solver = run("pymanopt", 1e-5, lr=None)
    assert list(again(lost, solver, run("geoopt", 1e-5))) == ["geoopt"]


def test_every_auto_close_to_the_target_leads_before_more_choices_by_hand():
    by_hand = [run("dense", 1e-4), run("s=16", 1e-4, 1e-4)]
    runs = [run("auto-adam", 1e-4), *by_hand, run("auto", 0.5, 0.5, 2e-4), run("pogo", 1e-4)]
    assert set(again(*runs)) == {"auto-adam", "dense", "auto", "pogo"}
    runs[3] = run("auto", 0.5, 0.5, 0.1)
    assert set(again(*runs)) == {"auto-adam", "dense", "s=16", "pogo"}


@pytest.mark.parametrize("gap", [1.5, 3.0])
def test_a_race_in_which_all_go_uphill_has_leaders_too(gap):
    assert set(again(run("auto", gap), run("pogo", 2.0))) == {"auto", "pogo"}


def test_the_best_loss_of_all_stands_for_an_unknown_optimum():
    runs = [run("auto", -1.0), run("dense", -0.99), run("pogo", -0.98), run("geoopt", 0.5)]
    assert set(again(*runs, optimum=None, floor=2e-2)) == {"auto", "dense", "pogo"}


def test_in_the_last_heat_the_leaders_run_several_times_at_their_best_rates():
    first = [run("auto", 1e-4, exponent=1), run("pogo", 1e-4), run("geoopt", 0.9)]
    second = [run("auto", 1e-5, exponent=1.25), run("pogo", 1e-3, exponent=0.25, momentum=0.9)]
    solver = run("pymanopt", 2e-4, lr=None)
    race = {"start": 1.0, "optimum": 0.0, "floor": 1e-6, "runs": [*first, *second, solver]}
    found = last_heat(race, OURS)
    assert {m: [(s.exponent, s.momentum) for s in settings] for m, settings in found.items()} == {
        "auto": [(1.25, 0.0)] * REPEATS,
        "pogo": [(0.0, 0.0)] * REPEATS,
        "pymanopt": [(0.0, 0.0)] * REPEATS,
    }
    assert last_heat(race | {"runs": []}, OURS) == {}


def test_who_was_first_with_one_rate_and_lowest_with_another_runs_in_the_last_heat_with_both():
    early, low = run("auto", 1e-5, 5e-5, exponent=1), run("auto", 0.5, 1e-5, exponent=0.5)
    race = {"start": 1.0, "optimum": 0.0, "floor": 1e-6}
    found = last_heat(race | {"runs": [early, low, run("pogo", 0.1, 1e-4)]}, OURS)
    assert [s.exponent for s in found["auto"]] == [1] * REPEATS + [0.5] * REPEATS
    assert len(found["pogo"]) == REPEATS
    early, low = run("auto", 1e-7, exponent=1), run("auto", 1e-6, 1e-8, exponent=0.5)
    found = last_heat(race | {"runs": [early, low, run("pogo", 0.1, 1e-7)]}, OURS)
    assert [s.exponent for s in found["auto"]] == [1] * REPEATS  # below the floor all are alike


def test_the_choice_by_hand_that_ends_lowest_leads_though_others_were_sooner():
    sooner = [run(name, 1e-5, 1e-5) for name in ("auto", "auto-adam", "s=2", "s=16")]
    assert list(again(*sooner, run("dense", 0.1, 1e-6), run("pogo", 1e-4))) == [
        "auto",
        "dense",
        "auto-adam",
        "pogo",
    ]
