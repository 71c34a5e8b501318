"""A vision transformer whose attention projections are orthogonal (not in the paper)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from skewflow.nn import OrthogonalLinear

HEAD = 64
"""Channels of one attention head."""


class ViT(nn.Module):
    """Patches of 4 x 4 pixels, layers of attention and MLP, the mean over patches, a linear head.

    In each layer three square matrices are marked as orthogonal: those of the queries, the keys and
    the output of the attention. The values, the MLP (four times as wide) and all else are free. So
    six layers have 18 orthogonal matrices of width x width. A layer norm comes before each part.

    Args:
        depth: Number of layers.
        width: Number of channels: a multiple of 64, or at most 64.
        classes: Number of outputs.
        size: Height and width of the images: a multiple of 4.

    Example:
        >>> import torch
        >>> ViT(depth=1, width=8)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, depth: int = 6, width: int = 1024, classes: int = 10, size: int = 32
    ) -> None:
        super().__init__()
        if depth < 1:
            raise ValueError(f"`depth` must be at least 1: got {depth}.")
        if width < 2 or (width > HEAD and width % HEAD):
            raise ValueError(
                f"`width` must be a multiple of {HEAD}, the channels of a head, or between 2 and "
                f"{HEAD}: got {width}."
            )
        if size < 4 or size % 4:
            raise ValueError(f"`size` must be a multiple of 4, the side of a patch: got {size}.")
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.positions = nn.Parameter(0.02 * torch.randn((size // 4) ** 2, width))
        self.layers = nn.Sequential(*(_Layer(width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c"]:
        """The logits."""
        tokens = self.patches(x).flatten(2).mT + self.positions
        logits: Tensor = self.head(self.norm(self.layers(tokens)).mean(1))
        return logits


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.keys = OrthogonalLinear(width, width), OrthogonalLinear(width, width)
        self.values, self.out = nn.Linear(width, width), OrthogonalLinear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.head = min(HEAD, width)

    def forward(self, x: Float[Tensor, "b t w"]) -> Float[Tensor, "b t w"]:
        normed = self.before_attention(x)
        q, k, v = (
            project(normed).unflatten(-1, (-1, self.head)).transpose(1, 2)  # (b, heads, t, head)
            for project in (self.queries, self.keys, self.values)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        added: Tensor = x + self.mlp(self.before_mlp(x))
        return added
