"""A recurrent net whose hidden transition is orthogonal (Sec. 6.1)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook

from ..errors import ShapeError
from ..kernels.recurrence.by_hand import recurrence_by_hand
from .modrelu import ModReLU
from .rnn_cell import Nonlinearity, OrthogonalRNNCell


class OrthogonalRNN(nn.Module):
    r"""`OrthogonalRNNCell` along a sequence, called as a `torch.nn.RNN` of one layer.

    It is the recurrent part of the policies of Sec. 6.1. All inputs are transformed in one product
    before the loop, and the loop has a gradient written by hand (`kernels/recurrence`). On CUDA in
    float32 with d <= 256 the whole sequence is one kernel launch in each direction.
    `torch.compile` unrolls the loop and recompiles for every new length, so pad sequences to few
    lengths. For hundreds of steps initialise the transition with `torus_` instead of Haar measure.

    Args:
        input_size: Number of inputs.
        hidden_size: d.
        nonlinearity: "modrelu", which starts as the identity, or "tanh".
        batch_first: Inputs and outputs are (batch, length, size) and not (length, batch, size).
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Example:
        >>> rnn = OrthogonalRNN(3, 8, batch_first=True)
        >>> outputs, h_n = rnn(torch.randn(5, 20, 3))
        >>> outputs.shape, h_n.shape
        (torch.Size([5, 20, 8]), torch.Size([1, 5, 8]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        nonlinearity: Nonlinearity = "modrelu",
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.cell = OrthogonalRNNCell(input_size, hidden_size, nonlinearity, device, dtype)

    def reset_parameters(self) -> None:
        """Draw all weights again, as the cell does."""
        self.cell.reset_parameters()

    def forward(
        self, x: Float[Tensor, "*sequence i"], h_0: Float[Tensor, "1 *batch d"] | None = None
    ) -> tuple[Float[Tensor, "*sequence d"], Float[Tensor, "1 *batch d"]]:
        """The hidden states of all steps, and the last one.

        Args:
            x: Inputs (length, batch, input_size), (batch, length, input_size) if `batch_first`, or
                (length, input_size) without a batch.
            h_0: The first hidden state (1, batch, hidden_size), or (1, hidden_size) without a
                batch, whatever `batch_first` is; zero when omitted.

        Returns:
            Hidden states in the layout of `x`, and the last one in that of `h_0`.

        Raises:
            ShapeError: If a shape does not fit, or the sequence is empty.
        """
        size, d = self.cell.input_size, self.cell.hidden_size
        time = 1 if self.batch_first and x.ndim == 3 else 0
        if x.ndim not in (2, 3) or x.shape[-1] != size or x.shape[time] == 0:
            batched = "(batch, length, " if self.batch_first else "(length, batch, "
            raise ShapeError(
                f"`x` must have the shape {batched}{size}) or (length, {size}) with a length of at "
                f"least one: got {tuple(x.shape)}."
            )
        expected = (1, x.shape[1 - time], d) if x.ndim == 3 else (1, d)
        if h_0 is None:
            h_0 = x.new_zeros(expected)
        if h_0.shape != expected:
            raise ShapeError(
                f"`h_0` must have the shape {expected}: got {tuple(h_0.shape)}. "
                "Omit it to start from zero."
            )
        u = self.cell.input(x)
        if self._is_plain(u, h_0):
            outputs = self._by_hand(u, h_0, time)
            return outputs, outputs.select(time, -1).unsqueeze(0)
        h, states = h_0[0], []
        for now in u.unbind(time):
            h = self.cell.advance(now, h)
            states.append(h)
        return torch.stack(states, time), h.unsqueeze(0)

    def _is_plain(self, u: Tensor, h_0: Tensor) -> bool:
        """Whether the loop by hand applies: no hook sees single steps, and there is one dtype."""
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return False
        if torch._C._are_functorch_transforms_active():
            return False
        if (
            forward_ad._current_level >= 0
        ):  # forward-mode differentiation; the gradient by hand is for the reverse mode
            return False
        cell = self.cell
        if _is_hooked(cell.activation):
            return False
        own = type(cell).advance is OrthogonalRNNCell.advance
        known = type(cell.activation) in (ModReLU, nn.Tanh)
        return own and known and u.dtype == h_0.dtype == cell.input.weight.dtype

    def _by_hand(self, u: Tensor, h_0: Tensor, time: int) -> Tensor:
        activation = self.cell.activation
        bias = activation.bias if isinstance(activation, ModReLU) else None
        if u.ndim == 2:  # one sequence is a batch of one
            return recurrence_by_hand(u.unsqueeze(1), h_0, self.cell.weight_hh, bias).squeeze(1)
        by_step = u.transpose(0, time)
        return recurrence_by_hand(by_step, h_0[0], self.cell.weight_hh, bias).transpose(0, time)


def _is_hooked(module: nn.Module) -> bool:
    """Whether a call of the module runs hooks besides `forward`, by the rule of torch."""
    own = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return any(own) or bool(_has_any_global_hook())  # type: ignore[no-untyped-call]
