"""CombinedOptimizer under Hugging Face's Trainer: trains, saves, resumes to the bit."""

import pytest
import torch

from helpers import EPS, randn
from nets import Net, both
from skewflow.geometry import orthogonality_error
from skewflow.optim import CombinedOptimizer

transformers = pytest.importorskip("transformers", reason="the extra `clients` is not installed")
pytest.importorskip("accelerate", reason="the extra `clients` is not installed")


class Model(torch.nn.Module):
    """The net of the tests as the Trainer calls one."""

    def __init__(self):
        super().__init__()
        self.net = Net(dtype=torch.float32)

    def forward(self, x, labels):
        return {"loss": (self.net(x) - labels).square().mean()}


def trainer(folder, **options):
    x = randn(64, 8, generator=torch.Generator().manual_seed(7), dtype=torch.float32)
    data = [{"x": row, "labels": row[:3].roll(1)} for row in x]
    model = Model()
    optimizer = CombinedOptimizer(both(model.net, check_every=3))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=40)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=8,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        save_strategy="steps",
        save_steps=16,
        logging_steps=4,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        **options,
    )
    return transformers.Trainer(
        model=model, args=arguments, train_dataset=data, optimizers=(optimizer, schedule)
    )


def test_a_resumed_run_equals_the_unbroken_one_to_the_bit(tmp_path):
    unbroken = trainer(tmp_path)
    unbroken.train()
    resumed = trainer(tmp_path / "again")
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-16"))
    losses, later = (
        [entry["loss"] for entry in run.state.log_history if "loss" in entry]
        for run in (unbroken, resumed)
    )
    assert later == losses and losses[-1] < 0.8 * losses[0]
    for name, value in unbroken.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    turn = resumed.model.net.turn.weight.detach()
    assert not torch.equal(turn, Net(dtype=torch.float32).turn.weight)
    assert orthogonality_error(turn) < EPS[torch.float32]
