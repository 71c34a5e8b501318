import pytest
import torch

from skewflow_lab.measure.timing import interleaved, percentiles, ratio, reason

CPU = torch.device("cpu")


def test_every_step_is_visited_in_every_round():
    order = []
    steps = {name: (lambda name=name: order.append(name)) for name in "ab"}
    visits = []
    times, failures = interleaved(
        steps, CPU, rounds=3, seconds=1e-9, on_visit=lambda: visits.append(len(order))
    )
    assert {name: len(t) for name, t in times.items()} == {"a": 3, "b": 3}
    assert not failures and len(visits) == 2 * (3 + 1)
    assert order[-6:] == ["a", "b"] * 3  # a visit this short is one call


def test_a_step_that_raises_is_let_go_and_the_others_stay():
    def fails():
        raise RuntimeError("no")

    steps = {"good": lambda: None, "bad": fails}
    times, failures = interleaved(steps, CPU, rounds=2, seconds=1e-6)
    assert failures == {"bad": "RuntimeError: no"}
    assert list(times) == list(steps) == ["good"]


def test_a_ratio_is_taken_inside_the_round():
    assert ratio({"a": [2.0, 30.0, 5.0], "b": [1.0, 10.0, 5.0]}, "a", "b") == 2.0


@pytest.mark.parametrize(
    "values, expected",
    [([3.0], "3 3 3"), (list(range(11)), "2 5 8"), ([1.23456, 1.23456], "1.235 1.235 1.235")],
)
def test_percentiles(values, expected):
    assert " ".join(percentiles(values).values()) == expected


def test_a_reason_is_one_short_line():
    assert reason(KeyError()) == "KeyError"
    assert reason(ValueError("first\nsecond")) == "ValueError: first"
    assert len(reason(ValueError("x" * 500))) == 160
