"""One step of a recurrent net whose hidden transition is orthogonal (Sec. 6.1)."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ..errors import ShapeError
from .init import orthogonal_
from .modrelu import ModReLU

Nonlinearity = Literal["modrelu", "tanh"]


class OrthogonalRNNCell(nn.Module):
    r"""The step $h' = f(W_{ih} x + b + W_{hh} h)$ with $W_{hh}$ in O(d), as in Sec. 6.1.

    `weight_hh` starts Haar-distributed and is marked as orthogonal; the optimiser keeps it so, see
    `optim.split_parameters`. Input weight and biases are unconstrained.

    Args:
        input_size: Number of inputs.
        hidden_size: d.
        nonlinearity: "modrelu", which starts as the identity, or "tanh".
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: If the nonlinearity is unknown.

    Example:
        >>> cell = OrthogonalRNNCell(3, 8)
        >>> h = cell(torch.randn(5, 3))
        >>> cell(torch.randn(5, 3), h).shape
        torch.Size([5, 8])
    """

    orthogonal_names = ("weight_hh",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        nonlinearity: Nonlinearity = "modrelu",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if nonlinearity not in ("modrelu", "tanh"):
            raise ValueError(
                f"`nonlinearity` must be 'modrelu' or 'tanh': got {nonlinearity!r}. For another, "
                "replace the attribute `activation` of the cell by your module."
            )
        self.input_size, self.hidden_size = input_size, hidden_size
        self.input = nn.Linear(input_size, hidden_size, device=device, dtype=dtype)
        self.weight_hh = nn.Parameter(
            torch.empty(hidden_size, hidden_size, device=device, dtype=dtype)
        )
        self.activation: nn.Module = (
            ModReLU(hidden_size, device, dtype) if nonlinearity == "modrelu" else nn.Tanh()
        )
        orthogonal_(self.weight_hh)

    def reset_parameters(self) -> None:
        """Draw all weights again with the global generator, the transition from Haar measure."""
        self.input.reset_parameters()
        if isinstance(self.activation, ModReLU):
            self.activation.reset_parameters()
        orthogonal_(self.weight_hh)

    def forward(
        self, x: Float[Tensor, "*batch i"], h: Float[Tensor, "*batch d"] | None = None
    ) -> Float[Tensor, "*batch d"]:
        """The next hidden state.

        Args:
            x: Input (*batch, input_size).
            h: Hidden state (*batch, hidden_size); zero when omitted.

        Raises:
            ShapeError: If the last dimension of either does not fit.
        """
        if x.ndim < 1 or x.shape[-1] != self.input_size:
            raise ShapeError(
                f"`x` must have the shape (*batch, {self.input_size}): got {tuple(x.shape)}. "
                "The last dimension is the input size of the cell."
            )
        if h is None:
            h = x.new_zeros(*x.shape[:-1], self.hidden_size)
        if h.shape != (*x.shape[:-1], self.hidden_size):
            raise ShapeError(
                f"`h` must have the shape {(*x.shape[:-1], self.hidden_size)}: got "
                f"{tuple(h.shape)}. Omit it to start from zero."
            )
        return self.advance(self.input(x), h)

    def advance(
        self, u: Float[Tensor, "*batch d"], h: Float[Tensor, "*batch d"]
    ) -> Float[Tensor, "*batch d"]:
        """The next hidden state from the transformed input $u = W_{ih} x + b$."""
        h_next: Tensor = self.activation(u + functional.linear(h, self.weight_hh))
        return h_next
