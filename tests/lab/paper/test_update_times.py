"""The time of an update: every method, a projection by its p-th part, the paper beside it."""

import pytest

from skewflow_lab.paper.rl import updates as _updates
from skewflow_lab.paper.rl.updates import ABS, METHODS, UNIFORM


def test_every_method_is_timed_and_a_projection_counts_by_its_part():
    times = _updates.measure(8, rounds=2)
    assert set(times) == set(METHODS) and {len(values) for values in times.values()} == {2}
    t = {p: times[f"projection p = {p}"][0] for p in _updates.PERIODS}
    # t(p) = a + b/p
    assert (t[4] - t[20]) / (t[5] - t[10]) == pytest.approx((1 / 4 - 1 / 20) / (1 / 5 - 1 / 10))
    assert 2 * t[20] - t[10] > 0


def test_ratios_are_medians_inside_the_rounds():
    times = {ABS: [2.0, 40.0, 2.0], UNIFORM: [1.0, 10.0, 1.0], "exact": [4.0, 40.0, 8.0]}
    found = _updates.readings(times)
    assert found["ms exact"] == 8.0
    assert found[f"exact over {ABS}"] == 2.0 and found[f"exact over {UNIFORM}"] == 4.0


def test_the_table_shows_the_ratios_of_the_paper():
    clock = {"ms exact": 3.0, f"exact over {ABS}": 5.0}
    shown = _updates.table({"update,d=200": 200, "update,d=9": 9}, {"update,d=200": clock})
    rows = {(row[0], row[1]): row[2:] for row in shown.rows}
    assert len(rows) == 2 * len(METHODS)
    assert rows[200, "exact"] == (3.0, 5.0, None, 1600, 1600 / 68)
    assert rows[200, "projection p = 5"] == (None, None, None, 324, 324 / 68)
    assert rows[9, "exact"] == (None,) * 5
