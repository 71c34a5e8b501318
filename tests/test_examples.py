"""The examples run and do what they say."""

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_quickstart_reaches_the_known_optimum():
    out = subprocess.run(
        [sys.executable, ROOT / "examples" / "quickstart.py"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    line = next(line for line in out.splitlines() if "relative distance" in line)
    assert float(line.split("->")[1]) < 1e-3
    error = next(line for line in out.splitlines() if "orthogonality error" in line)
    assert float(error.split()[-1]) < 1e-10


def test_the_quickstart_works_at_every_end_of_the_dial():
    quickstart = load("quickstart")
    for s, num_steps in ((2, 600), (5, 250), (16, 60)):
        _, _, history = quickstart.run(d=16, block_size=s, num_steps=num_steps)
        assert history.distance[-1] < 1e-2 < 1 < history.distance[0]


def test_the_readme_example_runs():
    text = (ROOT / "README.md").read_text()
    code = text.split("```python\n", 1)[1].split("```", 1)[0]
    scope = {}
    exec(code, scope)
    from skewflow.geometry import orthogonality_error

    assert orthogonality_error(scope["X"]).item() < 1e-4
