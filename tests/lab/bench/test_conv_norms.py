"""Convolutions as operators on images: their singular values, and who is a contraction."""

import json

import pytest
import torch
from torch import nn

from skewflow.nn import OrthogonalConv2d
from skewflow_lab.bench import conv_norms
from skewflow_lab.runs import files
from skewflow_lab.runs.files import RunError


@pytest.mark.parametrize("padding", conv_norms.PADDINGS)
@pytest.mark.parametrize("kernel, stride", [(3, 1), (3, 2), (2, 2)])
def test_the_power_iteration_finds_the_norm_of_the_operator(kernel, stride, padding):
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 5, kernel, stride, padding=1, padding_mode=padding, bias=False)
    values = conv_norms.spectrum(layer, 6)
    assert conv_norms.largest(layer, 6) == pytest.approx(values[0].item(), rel=1e-3)
    x = torch.randn(1, 2, 6, 6)
    length = layer(x).norm() / x.norm()
    assert values[-1] - 1e-5 < length < values[0] + 1e-5


def test_a_flattened_kernel_is_a_contraction_only_if_patches_do_not_overlap():
    torch.manual_seed(0)
    apart = OrthogonalConv2d(4, 16, 2, stride=2, bias=False)
    assert conv_norms.spectrum(apart, 6) == pytest.approx(1.0, abs=1e-5)
    overlapping = OrthogonalConv2d(4, 4, 3, padding=1, bias=False)
    assert 1.3 < conv_norms.largest(overlapping, 8) <= 3


def test_the_constants_are_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "ROOT", tmp_path)
    (tmp_path / "results" / "bench").mkdir(parents=True)
    monkeypatch.setattr(conv_norms, "SIZES", (4,))
    monkeypatch.setattr(conv_norms, "WINDOWS", ((3, 2), (2, 2)))
    monkeypatch.setattr(conv_norms, "ITERATIONS", 20)
    installed = conv_norms.find_spec("orthogonium") is not None
    if not installed:
        with pytest.raises(RunError, match=r"orthogonium is not installed; pip install"):
            conv_norms.conv_norms(rounds=1, steps=1, save=True)
    conv_norms.conv_norms(rounds=1, steps=5, save=installed)
    if installed:
        rows = json.loads((tmp_path / "results/bench/conv_norms.json").read_text())["rows"]
        assert len(rows) == 9
        true = [row for row in rows if row["layer"] == conv_norms.PEER]
        assert all(row["constant, 4 pixels"] < 1.001 for row in true)
