"""Records that are older than the code are marked, by the history of a repository."""

import subprocess

import pytest

from skewflow_lab.runs.staleness import changed_since, recorded

LIBRARY, REPORT = "src/skewflow/optim/step.py", "src/skewflow_lab/paper/rl/report.py"


def git(folder, *words):
    names = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(
        ["git", *names, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder, **changes):
    for name, text in changes.items():
        path = folder / {"library": LIBRARY, "report": REPORT, "docs": "README.md"}[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "change")
    return git(folder, "rev-parse", "--short", "HEAD")


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-q")
    return tmp_path


def test_a_change_of_the_library_makes_a_record_stale(repository):
    first = commit(repository, library="1", report="1")
    assert recorded([first], repository) == f"recorded at {first}; the code is the same"
    second = commit(repository, library="2")
    changed_since.cache_clear()
    assert recorded([first], repository) == f"recorded at {first}; the code has changed since"
    assert changed_since(second, repository) is False
    both = f"recorded at {first} to {second}; the code has changed since"
    assert recorded([first, first, "", second], repository) == both


def test_a_change_that_was_not_committed_counts(repository):
    first = commit(repository, library="1")
    (repository / LIBRARY).write_text("2")
    assert changed_since(first, repository) is True


def test_reports_and_pages_make_no_record_stale(repository):
    first = commit(repository, library="1", report="1", docs="1")
    commit(repository, report="2", docs="2")
    assert changed_since(first, repository) is False


def test_of_a_commit_with_uncommitted_changes_only_a_difference_is_known(repository):
    first = commit(repository, library="1")
    assert changed_since(f"{first}+", repository) is None
    assert recorded([f"{first}+"], repository) == f"recorded at {first}+"
    changed_since.cache_clear()
    commit(repository, library="2")
    assert changed_since(f"{first}+", repository) is True


def test_without_history_nothing_is_claimed(tmp_path, repository):
    commit(repository, library="1")
    assert recorded(["abcdef0"], repository) == "recorded at abcdef0"
    assert recorded([""], repository) == "recorded at an unknown commit"
    outside = repository / "missing"
    assert changed_since("abcdef0", outside) is None


def test_a_commit_is_never_an_option_of_git(repository):
    commit(repository, library="1")
    assert changed_since(f"--output={repository}/written", repository) is None
    assert changed_since("HEAD~1", repository) is None
    assert not (repository / "written").exists()
