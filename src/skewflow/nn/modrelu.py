"""modReLU: a ReLU on the size of each entry that keeps its sign."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class ModReLU(nn.Module):
    r"""The nonlinearity $z \mapsto \mathrm{sign}(z)\,\mathrm{relu}(|z| + b)$ with a free bias b.

    With b = 0, where it starts, it is the identity, so a recurrent net with an orthogonal
    transition starts by keeping lengths; a negative b sets small entries to zero. From Arjovsky,
    Shah and Bengio, "Unitary Evolution Recurrent Neural Networks", ICML 2016, here for real
    numbers. Not in the paper.

    Args:
        num_features: Size of the last dimension of the input.
        device: Of the bias.
        dtype: Of the bias.

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
        """The same shape as `z`."""
        return z.sign() * torch.relu(z.abs() + self.bias)

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{self.num_features}"
