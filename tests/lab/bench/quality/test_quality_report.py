"""What the summary makes of a race: targets, times to them, tables and verdict."""

import math

import pytest

from skewflow_lab.bench.quality.report import problem_summary, ratio, tables, verdict, which_auto
from skewflow_lab.bench.quality.standing import reached


def test_the_time_to_a_gap_lies_between_looks():
    points = [(0.0, 0, 1.0), (1.0, 10, 0.1), (2.0, 20, 0.2), (3.0, 30, 0.0)]
    assert reached(points, 1.0) == (0.0, 0)
    assert reached(points, 0.2) == pytest.approx((1 - math.log10(2), 10 - 10 * math.log10(2)))
    seconds, steps = reached(points, 0.1)  # where it stays: it had come back
    assert 2.0 < seconds < 3.0 and steps == pytest.approx(10 * seconds)
    assert reached(points[:3], 0.1) is None and reached([], 1.0) is None


def curve(*losses, seconds=1.0, error=1e-7):
    return [
        {"seconds": seconds * n, "steps": 10 * n, "loss": loss, "error": error}
        for n, loss in enumerate(losses)
    ]


def summary(runs, optimum=0.0, floor=1e-6, excuses=None):
    """A problem whose methods had one run each, or a tuple of them."""
    found = {"shape": [4, 4], "seconds": 2.0, "start": 1.0, "optimum": optimum, "floor": floor}
    found |= {"runs": []}
    for method, run in runs.items():
        many = run if isinstance(run, tuple) else (run,)
        for one in many:
            failure = one if isinstance(one, str) else None
            each = {"method": method, "lr": 0.1, "momentum": 0.0, "failure": failure}
            each |= {"exponent": 0.0}
            found["runs"].append(each | {"curve": [] if failure else one})
    names = {**dict.fromkeys(runs), **(excuses or {})}
    empty = {"gradient_ms": None, "peak_bytes": None, "remark": None}
    searches = {m: {"excuse": e, **empty} for m, e in names.items()}
    return problem_summary(
        "test", found, searches, ["auto", "auto-adam", "auto-natural", "s=2", "dense"]
    )


def test_the_target_is_the_best_final_gap_of_the_rivals():
    p = summary(
        {
            "auto": curve(1, 0.1, 0.001),
            "s=2": curve(1, 0.5, 0.3),
            "pogo": curve(1, 0.05, 0.04),
            "landing": curve(1, 0.01, 0.02),
            "rsdm": "lost: not finite after 3 steps",
        },
        excuses={"geoopt": "not installed"},
    )
    assert p["target"] == 0.02 and p["best_peer"] == "landing"
    rows = {row["method"]: row for row in p["rows"]}
    assert rows["pogo"]["seconds"] is None and rows["rsdm"]["note"].startswith("lost")
    assert rows["geoopt"]["note"] == "not installed" and rows["geoopt"]["seconds"] is None
    # From 1 to 0.01 in a second: 0.02 at the logarithm's part of it.
    landing = math.log(50) / math.log(100)
    auto = 1 + math.log(5) / math.log(100)
    assert rows["landing"]["seconds"] == pytest.approx(landing)
    assert ratio(p, "auto", "landing") == pytest.approx(auto / landing)
    assert rows["auto"]["note"] == "1.6 x the rival's steps, at 1 x the price each"
    assert "not reached with 2.4 x the rival's steps" in rows["s=2"]["note"]
    assert rows["auto"]["ms"] == pytest.approx(100.0)
    assert verdict({"problems": [p]}).startswith(
        '"auto" reaches the gap of the best rival in at most its time on 0 of 1 problems, in at '
        "most half of it on 0; it loses on test (1.6 times)"
    )


def test_a_gap_below_the_floor_counts_as_solved():
    p = summary({"auto": curve(1, 1e-8, 1e-8), "pogo": curve(1, 1e-4, 1e-9)})
    assert p["target"] == 1e-6
    assert ratio(p, "auto", "pogo") < 0.6
    assert "on 1 of 1 problems" in verdict({"problems": [p]})


def test_no_run_need_come_below_the_start_of_a_problem_without_known_optimum():
    p = summary({"auto": curve(1, 1.5), "pogo": curve(1, 3)}, optimum=None)
    assert [row["final_gap"] for row in p["rows"]] == [0.5, 2.0]


def test_the_best_loss_of_all_stands_for_an_unknown_optimum():
    p = summary({"auto": curve(1, -1, -3), "pogo": curve(1, 0, -1)}, optimum=None)
    assert not p["known_optimum"] and p["target"] == pytest.approx(0.5)
    assert ratio(p, "auto", "pogo") == pytest.approx(0.5)


def test_the_verdict_says_where_auto_is_worse_than_a_choice_by_hand_and_off_the_manifold():
    runs = {"auto": curve(1, 0.5, 0.01, error=1e-3), "pogo": curve(1, 0.5, 0.1)}
    told = verdict({"problems": [summary(runs | {"dense": curve(1, 0.01, 0.001)})]})
    assert "slower than our best choice by hand on test (not reached" in told
    assert "1.0e-03 from the manifold, beyond 1e-05" in told
    told = verdict({"problems": [summary(runs | {"dense": curve(1, 0.6, 0.05)})]})
    assert "slower than our best choice by hand nowhere" in told


def test_the_better_of_flow_sgd_and_flow_adam_is_auto():
    slow, fast, rival = curve(1, 0.5, 0.01), curve(1, 0.01, 0.01), curve(1, 0.1, 0.02)
    p = summary({"auto": slow, "auto-adam": fast, "pogo": rival, "dense": curve(1, 0.4, 0.02)})
    assert which_auto(p) == which_auto(p, "own_seconds") == "auto-adam"
    assert p["by_hand"] == "dense"  # not auto-adam, though it is the fastest
    told = verdict({"problems": [p]})
    assert "on 1 of 1 problems, in at most half of it on 1" in told
    assert '"auto" is the best of FlowSGD, FlowAdam: FlowAdam on test' in told
    table, _ = tables({"problems": [p]})
    row = table.rows[0]
    assert [row[n] for n, c in enumerate(table.columns) if c == "which auto"] == ["auto-adam"] * 2
    p = summary({"auto": slow, "auto-adam": slow, "auto-natural": fast, "pogo": rival})
    told = verdict({"problems": [p]})
    assert '"auto" is the best of FlowSGD, FlowAdam, natural steps: natural steps on test' in told
    p = summary({"auto": fast, "auto-adam": slow, "pogo": rival})
    assert which_auto(p) == "auto" and "FlowAdam: FlowSGD on test" in verdict({"problems": [p]})


def test_where_no_auto_comes_to_the_target_the_best_one_counts_and_it_is_lost():
    rival = curve(1, 0.1, 1e-3)
    p = summary({"auto": curve(1, 0.5, 0.2), "auto-adam": curve(1, 0.5, 0.1), "pogo": rival})
    assert which_auto(p) == "auto-adam" and "loses on test (not reached)" in verdict(
        {"problems": [p]}
    )
    p = summary({"auto": "lost", "auto-adam": "lost", "pogo": rival})
    assert which_auto(p) == "auto" and "loses on test (not reached)" in verdict({"problems": [p]})
    assert which_auto(summary({"pogo": rival})) is None


def test_without_rivals_there_is_nothing_to_compare():
    told = verdict({"problems": [summary({"auto": curve(1, 0.1, 0.01)})]})
    assert told.startswith('no problem has both "auto" and a rival')


def test_auto_that_misses_the_gap_by_hand_is_named():
    rival = curve(1, 0.9, 0.8)
    near = summary({"auto": curve(1, 0.1, 0.025), "dense": curve(1, 0.05, 0.01), "pogo": rival})
    assert near["own_target"] == pytest.approx(0.05 / 5 ** (2 / 1.3 - 1))
    results = {"problems": [near]}
    assert tables(results)[0].rows[0][-1] == "not reached"
    assert "by hand on test (not reached);" in verdict(results)


def test_a_method_as_much_slower_as_allowed_reaches_the_target_by_hand():
    looks = [0.1 ** (n / 10) for n in range(21)]
    slower = [0.1 ** (n / 10 / 1.29) for n in range(21)]
    runs = {"auto": curve(*slower, seconds=0.1), "dense": curve(*looks, seconds=0.1)}
    told = summary(runs | {"pogo": curve(1, 0.9, 0.8)})
    assert ratio(told, "auto", "dense", "own_seconds") == pytest.approx(1.29)
    runs["auto"] = curve(*[0.1 ** (n / 10 / 1.31) for n in range(21)], seconds=0.1)
    told = summary(runs | {"pogo": curve(1, 0.9, 0.8)})
    assert math.isinf(ratio(told, "auto", "dense", "own_seconds"))


def test_the_gap_by_hand_is_one_that_is_kept():
    looks = [1, 0.5, 0.2, 0.05, 0.3, 0.1]
    runs = {"auto": curve(*looks, seconds=0.4), "dense": curve(*looks, seconds=0.4)}
    told = summary(runs | {"pogo": curve(1, 0.9, 0.8)})
    assert told["own_target"] == pytest.approx(0.3)
    assert ratio(told, "auto", "dense", "own_seconds") == 1


def test_the_median_of_the_runs_counts():
    lucky, usual, slow = curve(1, 1e-5, 1e-5), curve(1, 0.5, 0.01), curve(1, 0.6, 0.02)
    p = summary(
        {
            "auto": (curve(1, 0.01, 0.005), curve(1, 0.5, 0.008), "lost: at its end"),
            "pogo": (lucky, slow, usual),
            "landing": curve(1, 0.1, 0.03),
            "dense": (curve(1, 0.5, 0.1), curve(1, 0.5, 0.3), curve(1, 0.5, 0.2)),
            "s=2": curve(1, 0.6, 0.5),
        }
    )
    assert p["target"] == 0.01 and p["best_peer"] == "pogo"
    assert p["own_target"] == pytest.approx(0.5 / 2.5 ** (2 / 1.3 - 1))
    assert p["by_hand"] == "dense"
    rows = {row["method"]: row for row in p["rows"]}
    assert rows["pogo"]["seconds"] == pytest.approx(2.0) and rows["pogo"]["final_gap"] == 0.01
    assert rows["pogo"]["spread"][0] < 1 and rows["pogo"]["spread"][1] is None
    assert rows["pogo"]["runs"] == 3 and rows["landing"]["runs"] == 1
    middle = 1 + math.log(0.5 / 0.01) / math.log(0.5 / 0.008)
    assert rows["auto"]["seconds"] == pytest.approx(middle) and rows["auto"]["final_gap"] == 0.008
    assert rows["auto"]["points"][-1][2] == 0.008
    most = summary({"auto": ("lost", "lost", usual), "pogo": (usual, slow, slow)})
    lost = {row["method"]: row for row in most["rows"]}["auto"]
    assert lost["seconds"] is None and lost["final_gap"] is None and lost["note"] == "lost"
    assert most["target"] == 0.02
