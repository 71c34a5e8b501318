"""The command `skewflow` as a user meets it."""

import subprocess
import sys

import pytest

import skewflow as skewflow_package


def skewflow(*words, before="pass"):
    code = f"import sys; {before}; from skewflow_lab.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)


@pytest.mark.parametrize(
    "call", [("-m", "skewflow"), ("-c", "import skewflow_lab.cli as c; c.main()")]
)
def test_without_arguments_the_help_is_printed(call):
    done = subprocess.run([sys.executable, *call], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    for text in ("usage: skewflow", "bench", "reproduce", "report", "--version"):
        assert text in done.stdout


def test_the_version_is_printed():
    done = subprocess.run(
        [sys.executable, "-m", "skewflow", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"skewflow {skewflow_package.__version__}\n")


def test_an_unknown_setting_of_table1_lists_the_known_ones(tmp_path):
    done = skewflow("reproduce", "table1", "--settings", "FOO", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for text in ("FOO", "--settings", "ES-200", "ES-400", "MNIST", "CIFAR"):
        assert text in done.stderr
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


RUN_MODULE = "runpy.run_module('skewflow', run_name='__main__')"


@pytest.mark.parametrize("packages", [("tyro",), ("tyro", "rich", "matplotlib", "jinja2")])
@pytest.mark.parametrize("call", ["skewflow_lab.cli.main()", RUN_MODULE])
def test_without_the_laboratory_s_packages_one_sentence_says_how_to_install_it(packages, call):
    hide = f"sys.modules.update(dict.fromkeys({packages!r}))"
    code = f"import sys, runpy, skewflow_lab.cli; {hide}; {call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "skewflow: install the laboratory, which has this command, by "
        f'`pip install "skewflow[lab]"`; missing here: {", ".join(packages)}.\n'
    )
