"""Accelerate with FSDP2 on one process: it shards the model after the optimiser was made."""

import pytest
import torch
from torch import distributed, nn

from helpers import EPS, randn
from skewflow.geometry import orthogonality_error
from skewflow.nn import OrthogonalLinear
from skewflow.optim import CombinedOptimizer, FlowSGD, split_parameters

accelerate = pytest.importorskip("accelerate", reason="the extra `clients` is not installed")
pytestmark = [
    pytest.mark.skipif(not distributed.is_gloo_available(), reason="torch was built without gloo"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*OMP_NUM_THREADS:UserWarning"),
]


@pytest.fixture
def accelerator(tmp_path, monkeypatch):
    """An accelerator with FSDP2, which Accelerate itself offers on GPUs only."""
    from accelerate.state import AcceleratorState, PartialState

    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    AcceleratorState._reset_state(reset_partial_state=True)
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        plugin = accelerate.FullyShardedDataParallelPlugin(
            fsdp_version=2, cpu_ram_efficient_loading=False, state_dict_type="SHARDED_STATE_DICT"
        )
        made = accelerate.Accelerator(cpu=True, fsdp_plugin=plugin)
        for shared in (PartialState._shared_state, AcceleratorState._shared_state):
            shared["distributed_type"] = accelerate.DistributedType.FSDP
        AcceleratorState._shared_state["fsdp_plugin"] = plugin
        assert made.is_fsdp2
        yield made
    finally:
        distributed.destroy_process_group()
        AcceleratorState._reset_state(reset_partial_state=True)


def run(accelerator, folder, epochs, save_after=None, resume_after=None):
    """Train with clipping; the model, its optimiser and the losses."""
    torch.manual_seed(0)
    layers = [OrthogonalLinear(8, 16), nn.Tanh(), OrthogonalLinear(16, 16), nn.Linear(16, 3)]
    model = nn.Sequential(*layers)
    ours, rest = split_parameters(model)
    both = [FlowSGD(ours, lr=0.01, momentum=0.9), torch.optim.AdamW(rest, lr=0.01)]
    optimizer = CombinedOptimizer(both)
    x = randn(64, 8, generator=torch.Generator().manual_seed(7), dtype=torch.float32)
    dataset = torch.utils.data.TensorDataset(x, x[:, :3].roll(1, -1))
    loader = torch.utils.data.DataLoader(dataset, batch_size=8)
    for prepared in (accelerator._models, accelerator._optimizers, accelerator._dataloaders):
        prepared.clear()  # as in a new process
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if resume_after is not None:
        accelerator.load_state(folder)
    losses = []
    for epoch in range(resume_after or 0, epochs):
        for inputs, targets in loader:
            loss = (model(inputs) - targets).square().mean()
            losses.append(loss.item())
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if epoch + 1 == save_after:
            accelerator.save_state(folder)
    return model, optimizer.optimizer, losses


def test_a_resumed_run_equals_the_unbroken_one_to_the_bit(accelerator, tmp_path):
    model, optimizer, losses = run(accelerator, tmp_path / "state", 6, save_after=3)
    weights = {name: p.full_tensor().detach() for name, p in model.named_parameters()}
    assert set(map(id, optimizer.state)) >= {id(model[0].weight), id(model[2].weight)}
    assert sum(losses[-8:]) < 0.8 * sum(losses[:8])
    for i in (0, 2):
        assert orthogonality_error(weights[f"{i}.weight"]) < EPS[torch.float32]
    resumed, _, later = run(accelerator, tmp_path / "state", 6, resume_after=3)
    assert later == losses[len(losses) // 2 :]
    for name, p in resumed.named_parameters():
        assert torch.equal(p.full_tensor(), weights[name]), name
