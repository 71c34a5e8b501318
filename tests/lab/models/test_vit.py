"""The transformer of the training benchmark."""

import pytest
import torch
from torch import nn

from skewflow.nn import orthogonal_parameters
from skewflow_lab.models.vit import ViT


def test_each_layer_has_three_orthogonal_square_matrices():
    marked = orthogonal_parameters(ViT(depth=2, width=8))
    assert [name for name, _ in marked] == [
        f"layers.{layer}.{part}.weight" for layer in (0, 1) for part in ("queries", "keys", "out")
    ]
    assert {tuple(p.shape) for _, p in marked} == {(8, 8)}


def test_the_default_has_18_matrices_of_1024_rows():
    with torch.device("meta"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("skewflow.nn.linear.orthogonal_", lambda weight: weight)
        marked = orthogonal_parameters(ViT())
    assert [tuple(p.shape) for _, p in marked] == 18 * [(1024, 1024)]


def test_attention_is_that_of_torch():
    torch.manual_seed(0)
    (layer,) = ViT(depth=1, width=128).double().layers
    x = torch.randn(2, 5, 128, dtype=torch.float64)
    theirs = nn.MultiheadAttention(128, num_heads=2, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        parts = (layer.queries, layer.keys, layer.values)
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.load_state_dict(layer.out.state_dict())
        nn.init.zeros_(layer.mlp[2].weight)
        nn.init.zeros_(layer.mlp[2].bias)
        normed = layer.before_attention(x)
        assert torch.allclose(layer(x), x + theirs(normed, normed, normed)[0])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"depth": 0}, "`depth` must be at least 1: got 0"),
        ({"width": 100}, "`width` must be a multiple of 64.*got 100"),
        ({"size": 30}, "`size` must be a multiple of 4.*got 30"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ViT(**{"depth": 1, "width": 8, **options})
