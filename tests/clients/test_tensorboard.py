"""The report in TensorBoard's files, read by TensorBoard's own reader."""

import pytest
import torch

from nets import Net, both, loss_of

event_accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator",
    reason="the extra `clients` is not installed",
)


def test_every_number_of_the_report_is_read_as_it_was_written(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    net = Net()
    flow, _ = both(net)
    written = []
    with SummaryWriter(tmp_path) as writer:
        for step in range(3):
            flow.zero_grad()
            loss_of(net, torch.Generator().manual_seed(step)).backward()
            written.append(flow.report())
            for name, value in written[-1].items():
                writer.add_scalar(name, value, step)
            flow.step()
    reader = event_accumulator.EventAccumulator(str(tmp_path))
    reader.Reload()
    assert set(reader.Tags()["scalars"]) == set(written[0])
    assert {"turn.weight/largest_angle", "turn.weight/variance_ratio"} < set(written[0])
    for name in written[0]:
        read = [event.value for event in reader.Scalars(name)]
        assert read == pytest.approx([report[name] for report in written], rel=1e-6), name
