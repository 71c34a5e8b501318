"""A record knows whether the code that it depends on has changed since."""

import pytest

from skewflow_lab.runs.code import LABORATORY, LIBRARY, changed, fingerprints, to_text

SOURCE = '''"""A module."""

FACTOR = 2
"""What a number is multiplied by."""


def twice(x):
    """Twice x."""
    return FACTOR * x  # the reason
'''


@pytest.fixture
def sources(tmp_path):
    """A tree with one module in each room, and what changes the one of `kernels`."""
    rooms = [tmp_path / "skewflow" / name for name in LIBRARY]
    rooms += [tmp_path / "skewflow_lab" / name for name in LABORATORY]
    for room in rooms:
        room.mkdir(parents=True)
        (room / "module.py").write_text(SOURCE)

    def edit(old, new, room="skewflow/kernels"):
        path = tmp_path / room / "module.py"
        path.write_text(path.read_text().replace(old, new))
        fingerprints.cache_clear()
        return fingerprints(tmp_path)

    yield edit
    fingerprints.cache_clear()


@pytest.mark.parametrize(
    "old, new",
    [
        ("the reason", "another reason"),
        ("Twice x.", "Two times x.\n\n    It is exact.\n    "),
        ("multiplied by", "scaled by"),
        ("FACTOR = 2\n", "FACTOR = 2\n\n\n"),
    ],
)
def test_comments_docstrings_and_blank_lines_do_not_count(old, new, sources):
    before = to_text(sources("", ""))
    assert not changed(before, "kernels", sources(old, new))


@pytest.mark.parametrize("old, new", [("= 2", "= 3"), ("* x", "+ x"), ("twice", "double")])
def test_code_counts(old, new, sources):
    before = to_text(sources("", ""))
    assert changed(before, "kernels", sources(old, new))


def test_a_room_above_the_highest_one_that_a_record_runs_does_not_count(sources):
    before = to_text(sources("", ""))
    now = sources("= 2", "= 3", "skewflow/optim")
    assert changed(before, "optim", now)
    assert changed(before, None, now)
    assert not changed(before, "kernels", now)


def test_the_laboratory_counts(sources):
    before = to_text(sources("", ""))
    assert changed(before, "geometry", sources("= 2", "= 3", "skewflow_lab/paper"))


def test_a_record_without_fingerprints_is_older_than_the_code(sources):
    assert changed("", "geometry", sources("", ""))


def test_every_room_of_these_sources_has_a_fingerprint():
    found = fingerprints()
    assert set(found) == {*LIBRARY, *LABORATORY}
    assert len(set(found.values())) == len(found)
