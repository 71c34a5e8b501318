"""The command `skewflow` as a user meets it."""

import runpy
import subprocess
import sys
from functools import partial

import pytest

import skewflow as skewflow_package
from lab.runs.test_reproduce import call
from skewflow_lab import cli


@pytest.fixture
def skewflow(monkeypatch, capsys):
    """Calls the command in this process: exit status, standard output, standard error."""
    return partial(call, monkeypatch, capsys)


def test_without_arguments_the_help_is_printed():
    done = subprocess.run([sys.executable, "-m", "skewflow"], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    for text in ("usage: skewflow", "bench", "reproduce", "report", "--version"):
        assert text in done.stdout


def test_the_version_is_printed(skewflow):
    assert skewflow("--version") == (0, f"skewflow {skewflow_package.__version__}\n", "")


def test_an_unknown_setting_of_table1_lists_the_known_ones(skewflow, tmp_path):
    status, _, err = skewflow("reproduce", "table1", "--settings", "FOO", "--out", tmp_path)
    assert status == 2
    for text in ("FOO", "--settings", "ES-200", "ES-400", "MNIST", "CIFAR"):
        assert text in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words, expected",
    [
        ((), ["bench"]),
        (("bench",), ["step", "Time one step of FlowSGD", "training", "quality", "which-end"]),
        (("bench", "online-pca"), ["--problems", "online-pca-4000", "--rounds", "--save"]),
        (("bench", "step"), ["--d", "--k", "--wide", "--shapes", "--block-sizes", "--save"]),
        (("bench", "training"), ["--network", "--precision", "--mode", "--depth", "--save"]),
    ],
)
def test_help_names_what_there_is(words, expected, skewflow):
    status, out, _ = skewflow(*words, "--help")
    assert status == 0
    for text in ["usage: skewflow", *expected]:
        assert text in out


@pytest.mark.parametrize("words, known", [(("banch",), "bench"), (("bench", "stop"), "step")])
def test_an_unknown_name_lists_the_known_ones(words, known, skewflow):
    status, _, err = skewflow(*words)
    assert status != 0
    assert words[-1] in err
    assert "Available subcommands" in err and known in err


@pytest.mark.parametrize("packages", [("tyro",), ("tyro", "rich", "matplotlib", "jinja2")])
@pytest.mark.parametrize(
    "main", [cli.main, partial(runpy.run_module, "skewflow", run_name="__main__")], ids=["", "-m"]
)
def test_without_the_laboratory_s_packages_one_sentence_says_how_to_install_it(
    packages, main, skewflow, monkeypatch
):
    for name in packages:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys, "argv", ["skewflow"])
    with pytest.raises(SystemExit) as end:  # Python prints the text on stderr, and returns 1
        main()
    assert end.value.code == (
        "skewflow: install the laboratory, which has this command, by "
        f'`pip install "skewflow[lab]"`; missing here: {", ".join(packages)}.'
    )


def test_the_commands_load_without_the_packages_of_other_extras():
    code = """
import sys
for name in ("mujoco", "gymnasium", "dm_control", "envpool", "jax", "ray", "geoopt", "geotorch",
             "pymanopt", "metric_learn", "gtsam", "orthogonium", "imageio", "networkx"):
    sys.modules[name] = None
import skewflow_lab.cli, skewflow_lab.paper, skewflow_lab.bench.rollouts
"""
    subprocess.run([sys.executable, "-c", code], check=True)
