"""Imports point downwards in both packages, and importing the library stays light."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

LIBRARY = [
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
    "distributed",
]
LABORATORY = [
    "runs",
    "measure",
    "data",
    "models",
    "rl",
    "bench",
    "paper",
    "report",
    "results",
    "cli",
]
LAYERS = {"skewflow": LIBRARY, "skewflow_lab": [*LABORATORY, "__main__"]}
"""Lowest first: a module may import from its own layer and from those before it."""

ENTRY = "skewflow/__main__.py"
"""`python -m skewflow` is the laboratory's command; nothing imports this file."""

INTERNALS = {
    "_files": "files of runs and checkpoints have one format",
    "_validate": "drivers refuse bad arguments with the library's messages",
    "es": "Ray's workers are the local workers in other processes",
    "geometry.matrices": "rivals step the same matrix view of a weight as the optimisers",
    "geometry.precision": "problems are evaluated without TF32, as the optimisers step",
    "kernels": "benchmarks time kernels, and the loops of Table 2 are compiled as they are",
    "optim.auto": "a race takes on a CPU the steps that `auto` chooses on CUDA",
    "optim.options": "benchmarks print what `auto` chooses",
    "problems.assignment": "rivals are finished by the same exchanges as our own flow",
    "tournaments.partitions": "types of the arguments of `block_sizes`",
}
"""Modules below which the laboratory takes names that are not public, and why it does."""

HEAVY = {"matplotlib", "gymnasium", "ray", "jax", "rustworkx", "triton"}
HEAVY |= {"numba", "rich", "tyro", "mujoco", "dm_control", "skewflow_lab"}
LAB_ONLY = {"matplotlib", "gymnasium", "ray", "jax", "tyro", "rich", "jinja2", "pooch", "sklearn"}
LAB_ONLY |= {"mujoco", "dm_control", "skewflow_lab"}


def imports(path):
    """What a source file imports, wherever in it: the module, and the names taken from it."""
    package = path.relative_to(SOURCE).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = [*base, *(node.module.split(".") if node.module else [])]
            names = tuple(alias.name for alias in node.names)
            if len(module) == 1 and module[0] in LAYERS:  # the names are modules
                yield from ((f"{module[0]}.{name}", ()) for name in names)
            else:
                yield ".".join(module), names


FILES = sorted(SOURCE.rglob("*.py"))


def name_of(path):
    return path.relative_to(SOURCE).as_posix()


def upward_imports(path):
    """What a file imports from a layer above its own, or must leave to the laboratory."""
    package, layer = path.relative_to(SOURCE).with_suffix("").parts[:2]
    if layer == "__init__" or name_of(path) == ENTRY:
        return
    layers = LAYERS[package]
    for module, _ in imports(path):
        root, *rest = module.split(".")
        upward = root == package and rest and layers.index(rest[0]) > layers.index(layer)
        on_use = root == "sklearn" and layer == "problems"  # its estimators load it on use
        if upward or (package == "skewflow" and root in LAB_ONLY and not on_use):
            yield f"{name_of(path)} imports {module}"


def test_imports_point_downwards():
    assert [found for path in FILES for found in upward_imports(path)] == []


def test_the_laboratory_takes_public_names_unless_a_reason_is_listed():
    used = set()
    for path in FILES:
        if path.is_relative_to(SOURCE / "skewflow_lab"):
            for module, names in imports(path):
                root, _, rest = module.partition(".")
                if root != "skewflow" or not rest or rest == "errors":
                    continue
                public = getattr(importlib.import_module(module), "__all__", ())
                if not set(names) <= set(public) or not public:
                    inside = {name for name in INTERNALS if f"{rest}.".startswith(f"{name}.")}
                    assert inside, f"{name_of(path)} imports {names} from {module}"
                    used |= inside
    assert used == set(INTERNALS)


def test_every_module_belongs_to_a_layer():
    for package, layers in LAYERS.items():
        folder = SOURCE / package
        modules = {p.relative_to(folder).with_suffix("").parts[0] for p in folder.rglob("*.py")}
        assert modules - {"__init__", "__main__"} <= set(layers)


def test_importing_the_library_imports_nothing_heavy():
    code = f"import sys, skewflow; print(sorted({HEAVY!r} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_the_check_sees_an_upward_import(monkeypatch):
    bad = SOURCE / "skewflow" / "geometry" / "skew.py"
    text = "def f():\n    from ..samplers import Uniform\n    from .. import _validate"
    monkeypatch.setattr(Path, "read_text", lambda _: text)
    assert ("skewflow.samplers", ("Uniform",)) in set(imports(bad))
    assert ("skewflow._validate", ()) in set(imports(bad))


def test_no_file_is_a_wall():
    long = {str(p): n for p in FILES if (n := len(p.read_text().splitlines())) > 400}
    assert not long
