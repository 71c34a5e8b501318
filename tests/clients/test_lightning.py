"""FlowSGD under PyTorch Lightning: trains, saves, resumes to the bit, stays orthogonal."""

import pytest
import torch

from helpers import EPS, randn
from nets import Net, both
from skewflow.geometry import orthogonality_error
from skewflow.optim import CombinedOptimizer, FlowSGD

lightning = pytest.importorskip("lightning", reason="the extra `clients` is not installed")

# Lightning's own call of torch's pytree, not ours.
pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.:FutureWarning")


class Module(lightning.LightningModule):
    """The net of the tests, with the losses it has seen."""

    def __init__(self):
        super().__init__()
        self.net = Net(dtype=torch.float32)
        self.losses = []

    def loss(self, batch):
        x, y = batch
        loss = (self.net(x) - y).square().mean()
        self.losses.append(loss.item())
        return loss


class Manual(Module):
    """Two optimisers, FlowSGD and AdamW, stepped by hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self):
        flow, adam = both(self.net, check_every=3)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(flow, max_lr=0.05, total_steps=100)
        return [flow, adam], [scheduler]

    def training_step(self, batch, index):
        loss = self.loss(batch)
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            self.clip_gradients(optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
            optimizer.step()
        self.lr_schedulers().step()


class Automatic(Module):
    """One optimiser, FlowSGD, stepped by the trainer; the rest of the net is frozen."""

    def __init__(self):
        super().__init__()
        self.net.head.requires_grad_(False)

    def configure_optimizers(self):
        flow = FlowSGD([("turn.weight", self.net.turn.weight)], lr=0.1, momentum=0.9, block_size=2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(flow, T_max=100)
        return {"optimizer": flow, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def training_step(self, batch, index):
        return self.loss(batch)


class Combined(Module):
    """FlowSGD and AdamW as one optimiser, stepped by the trainer, which logs its report."""

    def on_before_optimizer_step(self, optimizer):
        self.log_dict(self.optimizers(use_pl_optimizer=False).report())

    def configure_optimizers(self):
        optimizer = CombinedOptimizer(both(self.net, check_every=3))
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler}}

    def training_step(self, batch, index):
        return self.loss(batch)


def trainer(epochs, folder, **options):
    return lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def data():
    x = randn(64, 8, generator=torch.Generator().manual_seed(7), dtype=torch.float32)
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, x[:, :3].roll(1, -1)), batch_size=16
    )


@pytest.mark.parametrize(
    "make, options",
    [
        (Manual, {}),
        (Automatic, {"gradient_clip_val": 1.0, "accumulate_grad_batches": 2}),
        (Combined, {"gradient_clip_val": 1.0, "accumulate_grad_batches": 2}),
    ],
)
def test_a_resumed_run_equals_the_unbroken_one_to_the_bit(make, options, tmp_path):
    unbroken = make()
    trainer(8, tmp_path, **options).fit(unbroken, data())
    half = make()
    first = trainer(4, tmp_path, **options)
    first.fit(half, data())
    first.save_checkpoint(tmp_path / "half.ckpt")
    resumed = make()
    trainer(8, tmp_path, **options).fit(resumed, data(), ckpt_path=tmp_path / "half.ckpt")

    assert resumed.losses == unbroken.losses[16:]
    assert sum(unbroken.losses[-4:]) < 0.8 * sum(unbroken.losses[:4])
    for name, value in unbroken.net.state_dict().items():
        assert torch.equal(value, resumed.net.state_dict()[name]), name
    turn = resumed.net.turn.weight.detach()
    assert not torch.equal(turn, Net(dtype=torch.float32).turn.weight)
    assert orthogonality_error(turn) < EPS[torch.float32]
