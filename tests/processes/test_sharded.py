"""Sharded weights on several processes against the optimisers on whole ones; see two.py."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from processes import four, models, two

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_gloo_available(), reason="torch was built without gloo"
)


def alone(test):
    """What torch warns of where a checkpoint is read in one process."""
    for warning in ("torch.distributed is disabled", "TypedStorage is deprecated"):
        test = pytest.mark.filterwarnings(f"ignore:{warning}:UserWarning")(test)
    return test


def processes(module, *arguments, number=2):
    """Processes that run a module with their rank."""
    command = [sys.executable, "-m", f"processes.{module}"]
    return [
        subprocess.Popen(
            [*command, str(rank), *arguments],
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        for rank in range(number)
    ]


def ran(module, folder, number):
    """Run the checks of a module; they leave their results in the folder."""
    ranks = processes(module, str(folder), number=number)
    try:
        for process in ranks:
            _, errors = process.communicate(timeout=580)
            assert process.returncode == 0, errors
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def assert_passed(checks, folder, rank):
    results = json.loads((folder / f"{rank}.json").read_text())
    assert set(results) == set(checks)
    failed = {name: told for name, (verdict, told) in results.items() if verdict != "passed"}
    assert not failed, "\n".join(f"{name}: {told}" for name, told in failed.items())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the two processes have left their results."""
    folder = tmp_path_factory.mktemp("sharded")
    ran("two", folder, 2)
    return folder


@pytest.mark.parametrize("rank", range(2))
def test_every_check_passes_on_both_processes(folder, rank):
    assert_passed(two.checks(folder), folder, rank)


@pytest.mark.slow
def test_every_check_passes_on_four_processes(tmp_path):
    ran("four", tmp_path, 4)
    for rank in range(4):
        assert_passed(four.checks(), tmp_path, rank)


def gone_on(saved, options, kind="momentum"):
    """The model of one process after three steps from a checkpoint of two."""
    model, *optimizers = models.saved_model(None, kind=kind)
    model_state, optimizer_state = get_state_dict(model, optimizers, options=options)
    state = {"m": model_state, "o": optimizer_state}
    checkpoint.load(state, checkpoint_id=saved)
    set_state_dict(
        model,
        optimizers,
        model_state_dict=state["m"],
        optim_state_dict=state["o"],
        options=options,
    )
    assert optimizers[0].param_groups[0]["step"] == 4
    models.run(model, optimizers, 3, seed=2)
    return model


@alone
@pytest.mark.parametrize("kind, flat", models.SAVED)
def test_what_two_processes_saved_goes_on_in_one(folder, kind, flat):
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model = gone_on(folder / f"{kind}-{flat}", options, kind)
    went_on = torch.load(folder / f"{kind}-{flat}.0.pt")
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), went_on[name], rtol=0, atol=1e-12)


@alone
@pytest.mark.parametrize("place", ["forward pass", "step"])
def test_when_a_process_dies_the_other_ends_and_the_last_checkpoint_goes_on(
    place, folder, tmp_path
):
    ranks = processes("dying", str(tmp_path), place)
    try:
        errors = [process.communicate(timeout=300)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert ranks[1].returncode == 7
    assert ranks[0].returncode == 1
    assert re.search(r"RuntimeError: .*(closed by peer|reset by peer|timed out)", errors[0], re.I)
    if place == "step":
        assert "Most likely a process has ended" in errors[0]
        assert "again from the last checkpoint" in errors[0].splitlines()[-1]
    model = gone_on(tmp_path / "last", StateDictOptions(flatten_optimizer_state_dict=True))
    for name, p in model.named_parameters():
        went_on = torch.load(folder / "momentum-True.0.pt")
        torch.testing.assert_close(p.detach(), went_on[name], rtol=0, atol=1e-12)
