"""The command `skewflow` as a user meets it."""

import subprocess
import sys

import pytest


def skewflow(*words, before="pass"):
    code = f"import sys; {before}; from skewflow.lab.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)


@pytest.mark.parametrize(
    "words, expected",
    [
        ((), ["bench"]),
        (("bench",), ["step", "Time one step of FlowSGD", "training"]),
        (("bench", "step"), ["--d", "--k", "--wide", "--shapes", "--block-sizes", "--save"]),
        (("bench", "training"), ["--network", "--precision", "--mode", "--depth", "--save"]),
    ],
)
def test_help_names_what_there_is(words, expected):
    done = skewflow(*words, "--help")
    assert done.returncode == 0
    for text in ["usage: skewflow", *expected]:
        assert text in done.stdout


@pytest.mark.parametrize("words, known", [(("banch",), "bench"), (("bench", "stop"), "step")])
def test_an_unknown_name_lists_the_known_ones(words, known):
    done = skewflow(*words)
    assert done.returncode != 0
    assert words[-1] in done.stderr
    assert "Available subcommands" in done.stderr and known in done.stderr


@pytest.mark.parametrize("package", ["tyro", "matplotlib", "rich"])
def test_a_missing_package_is_named_with_its_extra(package):
    done = skewflow("--help", before=f"sys.modules[{package!r}] = None")
    assert done.returncode != 0
    assert done.stderr.strip() == (
        f"skewflow: the command needs {package}, of the extra `lab`: pip install 'skewflow[lab]'"
    )
