"""A linear layer with an orthogonal weight (Sec. 6.2)."""

from torch import nn

from .init import orthogonal_


class OrthogonalLinear(nn.Linear):
    r"""`torch.nn.Linear` whose weight starts Haar-distributed and is marked as orthogonal.

    The weight (out_features, in_features) has orthonormal columns if it is tall, so that the layer
    preserves lengths, and orthonormal rows if it is wide. The layer does not keep it orthogonal;
    the optimiser does, see `optim.split_parameters`. The bias is unconstrained. The MLP of Sec. 6.2
    has such layers.

    Args:
        in_features: As in `torch.nn.Linear`, like all arguments.

    Example:
        >>> import torch
        >>> layer = OrthogonalLinear(3, 8, bias=False)
        >>> x = torch.randn(5, 3)
        >>> bool(torch.allclose(layer(x).norm(dim=-1), x.norm(dim=-1), atol=1e-5))
        True
    """

    orthogonal_names = ("weight",)

    def reset_parameters(self) -> None:
        """Draw the weight from Haar measure and the bias as torch does, by the global generator."""
        super().reset_parameters()
        orthogonal_(self.weight)
