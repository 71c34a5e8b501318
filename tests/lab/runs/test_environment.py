import subprocess

import pytest

from skewflow_lab.runs import environment
from skewflow_lab.runs.files import RunError


@pytest.fixture
def repository(tmp_path, monkeypatch):
    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    for name in ("src/code.py", "results/bench/step.csv", "results/quality/summary.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("1\n")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "src" / "environment.py"))
    return tmp_path


def test_changed_code_marks_the_commit_and_saved_numbers_do_not(repository):
    clean = environment.commit()
    assert clean and not clean.endswith("+")
    (repository / "results" / "bench" / "step.csv").write_text("2\n")
    (repository / "results" / "bench" / "new.csv").write_text("2\n")
    (repository / "results" / "quality" / "summary.json").write_text("2\n")
    assert environment.commit() == clean
    (repository / "src" / "code.py").write_text("2\n")
    assert environment.commit() == f"{clean}+"


def test_outside_of_a_checkout_the_variable_names_the_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "environment.py"))
    monkeypatch.setenv("SKEWFLOW_COMMIT", "abc1234")
    assert environment.commit() == "abc1234"
    monkeypatch.delenv("SKEWFLOW_COMMIT")
    assert environment.commit() == ""


def test_only_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    environment.check_device("cpu")
    with pytest.raises(RunError, match="got cuda, and torch sees no GPU. Use --device cpu"):
        environment.check_device("cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    environment.check_device("cuda")


def test_the_cpu_is_named_even_where_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert environment.environment("cpu")["device"] == environment.device_name("cpu")
