"""modReLU: a ReLU of the absolute value of each entry, with the sign of the entry."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class ModReLU(nn.Module):
    r"""The function $z \mapsto \mathrm{sign}(z)\,\mathrm{relu}(|z| + b)$ with a trainable bias b.

    It starts with b = 0 as the identity, so at the start a recurrent net with an orthogonal
    transition preserves lengths; a negative b sets small entries to zero. It is the real form of
    the function of Arjovsky, Shah and Bengio, "Unitary Evolution Recurrent Neural Networks", ICML
    2016 (not in the paper).

    Args:
        num_features: Size of the last dimension of the input.
        device: Device of the bias.
        dtype: Dtype of the bias.

    Example:
        >>> f = ModReLU(3)
        >>> _ = torch.nn.init.constant_(f.bias, -1.0)
        >>> f(torch.tensor([-3.0, 0.5, 2.0])).tolist()
        [-2.0, 0.0, 1.0]
    """

    def __init__(
        self,
        num_features: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.bias = nn.Parameter(torch.empty(num_features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the bias to zero."""
        nn.init.zeros_(self.bias)

    def forward(self, z: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """The function of each entry of `z`."""
        return z.sign() * torch.relu(z.abs() + self.bias)

    def extra_repr(self) -> str:
        """The arguments that `print` shows."""
        return f"{self.num_features}"
