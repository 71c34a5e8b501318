"""States of older commits go on as they would have gone on there, or are refused."""

from pathlib import Path

import pytest
import torch
from torch import nn

from skewflow.optim import FlowAdam, FlowSGD, NaturalSGD

SAVED = Path(__file__).parents[1] / "saved"
MAKES = {
    "pairs": FlowSGD,
    "auto": FlowSGD,
    "exponential": FlowSGD,
    "independent pairs": FlowSGD,
    "round robin": FlowSGD,
    "adam": FlowAdam,
    "factors": FlowSGD,
    "natural": NaturalSGD,
}


def load(commit):
    return torch.load(SAVED / f"{commit}.pt", weights_only=True)


def factors_of(grad):
    return grad[:, :1].contiguous(), grad[0, :, None].contiguous()


@pytest.mark.parametrize("case", MAKES)
@pytest.mark.parametrize("commit", ["be26308", "5ad7d67"])
def test_a_state_of_an_older_commit_goes_on_as_it_did_there(commit, case):
    saved = load(commit)[case]
    p = nn.Parameter(saved["point"])
    optimizer = MAKES[case]([p], lr=1.0)
    optimizer.load_state_dict(saved["state"])
    for grad in saved["gradients"]:
        if case in ("factors", "natural"):
            optimizer.step(factors={p: factors_of(grad)})
        else:
            p.grad = grad
            optimizer.step()
    assert torch.allclose(p, saved["end"], atol=1e-5)


def test_options_of_older_states_get_the_names_of_today():
    p = nn.Parameter(load("5ad7d67")["auto"]["point"])
    optimizer = FlowSGD([p], lr=1.0)
    with pytest.raises(ValueError, match="load it into `NaturalSGD`"):
        optimizer.load_state_dict(load("5ad7d67")["natural"]["state"])
    for case, retraction in (("auto", "auto"), ("exponential", "exp")):
        optimizer.load_state_dict(load("5ad7d67")[case]["state"])
        (group,) = optimizer.param_groups
        assert group["retraction"] == retraction and "guard_every" not in group
    assert group["check_every"] == 2
