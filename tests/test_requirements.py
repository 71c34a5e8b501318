"""The versions that `make` installs: pinned, and locked by the hashes of their files."""

import importlib.util
import re
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def lock():
    """The script that writes requirements.lock."""
    spec = importlib.util.spec_from_file_location("lock", ROOT / "scripts" / "lock.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def locked(lock):
    """Name to version and number of hashes."""
    entry = re.compile(r"(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")
    comment, _, text = lock.LOCK.read_text().partition("\n")
    assert comment.startswith("#") and not entry.sub("", text)
    return {m[1]: (m[2], m[3].count("--hash")) for m in entry.finditer(text)}


def test_every_locked_version_is_that_of_the_constraints_and_has_hashes(lock, locked):
    versions = lock.constraints()
    for name, (version, hashes) in locked.items():
        assert versions[name] == version and hashes >= 1, name


def test_all_that_the_tests_need_is_locked_but_torch_and_triton(lock, locked):
    assert lock.needed() <= set(locked)  # other versions of Python may need less
    assert not {"torch", "triton"} & set(locked)


def test_what_runs_here_has_the_locked_versions(locked):
    assert {name: metadata.version(name) for name in locked} == {
        name: version for name, (version, _) in locked.items()
    }


def test_make_installs_nothing_before_its_hash_is_checked():
    rule = (ROOT / "Makefile").read_text().split("-m venv .venv\n")[1]
    first, second = rule.split("\n")[:2]
    assert "pip install --quiet --require-hashes --no-deps -r requirements.lock" in first
    assert "--no-build-isolation" in second  # which would fetch packages without a hash
    for name in ("requirements.lock", "constraints.txt", "scripts/lock.py"):
        assert "://" not in (ROOT / name).read_text()
