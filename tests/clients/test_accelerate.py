"""FlowSGD under Hugging Face Accelerate: trains, saves, resumes to the bit, stays orthogonal."""

import pytest
import torch

from helpers import EPS, randn
from nets import Net, both
from skewflow.geometry import orthogonality_error

accelerate = pytest.importorskip("accelerate", reason="the extra `clients` is not installed")


def run(folder, epochs, save_after=None, resume_after=None):
    """Train with two optimisers, accumulation and clipping; the net and its losses."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # as a new process
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = Net(dtype=torch.float32)
    flow, adam = both(net, check_every=3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(flow, max_lr=0.05, total_steps=100)
    x = randn(64, 8, generator=torch.Generator().manual_seed(7), dtype=torch.float32)
    dataset = torch.utils.data.TensorDataset(x, x[:, :3].roll(1, -1))
    model, flow, adam, loader, scheduler = accelerator.prepare(
        net, flow, adam, torch.utils.data.DataLoader(dataset, batch_size=8), scheduler
    )
    if resume_after is not None:
        accelerator.load_state(folder)
    losses = []
    for epoch in range(resume_after or 0, epochs):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = (model(inputs) - targets).square().mean()
                losses.append(loss.item())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                for stepped in (flow, adam, scheduler):
                    stepped.step()
                for optimizer in (flow, adam):
                    optimizer.zero_grad()
        if epoch + 1 == save_after:
            accelerator.save_state(folder)
    return accelerator.unwrap_model(model), losses


def test_a_resumed_run_equals_the_unbroken_one_to_the_bit(tmp_path):
    unbroken, losses = run(tmp_path, 8, save_after=4)
    resumed, later = run(tmp_path, 8, resume_after=4)
    assert later == losses[len(losses) // 2 :]
    assert sum(losses[-8:]) < 0.8 * sum(losses[:8])
    for name, value in unbroken.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    turn = resumed.turn.weight.detach()
    assert not torch.equal(turn, Net(dtype=torch.float32).turn.weight)
    assert orthogonality_error(turn) < EPS[torch.float32]
