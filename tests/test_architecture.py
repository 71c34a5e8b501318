"""Imports point downwards, and importing the package stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "skewflow"

LAYERS = [
    "errors",
    "_files",
    "_typing",
    "_validate",
    "geometry",
    "tournaments",
    "kernels",
    "samplers",
    "optim",
    "nn",
    "flows",
    "es",
    "problems",
    "lab",
    "__main__",
]
"""Lowest first: a module may import from its own layer and from those before it."""

HEAVY = {"matplotlib", "gymnasium", "ray", "jax", "rustworkx", "triton"}
HEAVY |= {"numba", "rich", "tyro"}
HEAVY |= {"mujoco", "dm_control"}
LAB_ONLY = {"matplotlib", "gymnasium", "ray", "jax", "tyro", "rich", "jinja2", "pooch", "sklearn"}
LAB_ONLY |= {"mujoco", "dm_control"}


def imports(path):
    """Absolute dotted names that a source file imports, wherever in it."""
    package = ["skewflow", *path.relative_to(SOURCE).with_suffix("").parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            yield ".".join(module)
            if module == ["skewflow"]:
                yield from (f"skewflow.{alias.name}" for alias in node.names)


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_downwards(path):
    layer = path.relative_to(SOURCE).with_suffix("").parts[0]
    if layer == "__init__":
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "skewflow" and len(parts) > 1:
            assert LAYERS.index(parts[1]) <= LAYERS.index(layer), f"{layer} imports {name}"
        if layer != "lab":
            assert parts[0] not in LAB_ONLY, f"{layer} imports {name}"


def test_every_module_belongs_to_a_layer():
    modules = {p.relative_to(SOURCE).with_suffix("").parts[0] for p in FILES}
    assert modules - {"__init__"} <= set(LAYERS)


def test_importing_the_package_imports_nothing_heavy():
    code = f"import sys, skewflow; print(sorted({HEAVY!r} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_the_check_sees_an_upward_import(tmp_path, monkeypatch):
    bad = SOURCE / "geometry" / "skew.py"
    monkeypatch.setattr(Path, "read_text", lambda _: "def f():\n    from ..samplers import Uniform")
    assert "skewflow.samplers" in set(imports(bad))


def test_no_file_is_a_wall():
    long = {str(p): n for p in FILES if (n := len(p.read_text().splitlines())) > 400}
    assert not long
