"""Every kind of step gives the bits that were recorded."""

import numpy as np
import pytest

from golden import cases

GOLDEN = np.load(cases.FILE)
DIGESTS = dict(zip(GOLDEN["names"], GOLDEN["digests"], strict=True))
TABLE = cases.cases()
SAME_PROCESSOR = cases.processor() == str(GOLDEN["processor"])


def test_every_case_is_recorded():
    assert set(DIGESTS) == set(TABLE)


@pytest.mark.parametrize("part", range(8))
def test_the_bits_are_those_that_were_recorded(part):
    changed = []
    for name in list(TABLE)[part::8]:
        if SAME_PROCESSOR:
            same = cases.digest(TABLE[name]()) == DIGESTS[name]
        else:  # angles of many turns magnify rounding
            numbers = cases.numbers(TABLE[name](cases.FEW_STEPS))
            same = np.allclose(numbers, GOLDEN[f"numbers/{name}"], atol=1e-2) or "-lr" in name
        if not same:
            changed.append(name)
    assert not changed
