"""What needs the extra `problems` says how to install it."""

import pytest

from skewflow.problems import _extra


@pytest.mark.parametrize("package", ["scipy", "sklearn"])
def test_a_missing_package_is_named_with_its_extra(package, monkeypatch):
    monkeypatch.setattr(_extra, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=rf"needs {package}: .*skewflow\[problems\]"):
        _extra.require(package)


def test_what_is_installed_passes():
    _extra.require("scipy")
