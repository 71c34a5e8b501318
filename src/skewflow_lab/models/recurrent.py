"""Recurrent nets for long sequences, and the methods that train them."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from skewflow.errors import NonFiniteGradientError
from skewflow.nn import OrthogonalRNN, torus_
from skewflow.optim import FlowAdam, FlowSGD

from ..data.sequences import Copying, Task
from ..runs.seeds import spawn
from .methods import relative_error
from .resumable import Resumable

Method = Literal["FlowSGD", "FlowAdam", "geotorch", "fixed", "LSTM"]
"""A net with an orthogonal transition, trained by `FlowSGD`, by `FlowAdam`, as geotorch's
exponential of a skew matrix (expRNN), or not trained; and torch's LSTM."""


@dataclass(frozen=True)
class Rates:
    """Learning rates of a task.

    An error of the transition or of the bias adds up along the sequence, so their learning rates
    are divided by its length. The rates were set by hand, see `BY_HAND`; a search may multiply the
    rate that belongs to the method, see `Learner`.
    """

    free: float
    """Learning rate of the input weights and the head, by RMSprop."""
    bias: float
    """Learning rate of modReLU's bias by RMSprop, divided by the length of the sequence."""
    transition: Mapping[str, float]
    """Learning rate of the transition by method, divided by the length of the sequence."""
    lstm: float = 1e-3
    """Learning rate of all weights of the LSTM, by Adam."""


COPYING = Rates(3e-3, 0.01, {"FlowSGD": 0.3, "FlowAdam": 0.05, "geotorch": 0.02})
PIXELS = Rates(1e-3, 0.5, {"FlowSGD": 0.005, "FlowAdam": 0.05, "geotorch": 0.05})
"""Learning rates for images; unlike copying, reading them needs a bias that is trained."""
BY_HAND = (
    "Learning rates are set by hand, not by an even search: those of FlowSGD and FlowAdam, and "
    "with them those of the free weights that all orthogonal nets share, by trying a handful at "
    "small size; geotorch's by one correction; the LSTM has Adam's default in torch, 1e-3."
)
"""Note in tables and figures on `COPYING` and `PIXELS` if no search was made."""


class SequenceNet(nn.Module):
    """A recurrent layer, and a linear head on all of its states."""

    def __init__(self, layer: nn.Module, hidden: int, classes: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(hidden, classes)

    def forward(self, x: Float[Tensor, "l b i"], last: bool = False) -> Float[Tensor, "*steps b c"]:
        """The logits of every step, or of the last one."""
        states = self.layer(x)[0]
        logits: Tensor = self.head(states[-1] if last else states)
        return logits


def is_missing(method: Method) -> bool:
    """Whether a package that the method needs is not installed."""
    return method == "geotorch" and find_spec("geotorch") is None


class Learner(Resumable):
    """A net, its optimisers, and the number of steps taken.

    Args:
        task: The task.
        method: The method.
        hidden: Width of the recurrent layer.
        seed: Seed of the weights, which are the same for all methods with an orthogonal transition.
        device: Device of the net.
        factor: Factor on the learning rate that belongs to the method: the rate of the transition;
            if the transition is fixed, of the input weights and the head; or of the whole LSTM.
    """

    def __init__(
        self,
        task: Task,
        method: Method,
        *,
        hidden: int,
        seed: int,
        device: torch.device | str,
        factor: float = 1.0,
    ) -> None:
        self.task, self.step = task, 0
        rates = COPYING if isinstance(task, Copying) else PIXELS
        own = {**rates.transition, "fixed": rates.free, "LSTM": rates.lstm}
        self.rate = factor * own[method]
        """The learning rate that belongs to the method, before the division by the length."""
        self._rates = rates
        number = int(torch.randint(2**31, (), generator=spawn(seed, "weights")))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            layer: nn.Module
            if method == "LSTM":
                layer = nn.LSTM(task.inputs, hidden)
            else:
                layer = OrthogonalRNN(task.inputs, hidden)
                torus_(layer.cell.weight_hh)
            self.net: SequenceNet = SequenceNet(layer, hidden, task.classes).to(device)
            self.num_weights = sum(p.numel() for p in self.net.parameters())
            self.optimizers = self._make_optimizers(method)

    def _make_optimizers(self, method: Method) -> list[torch.optim.Optimizer]:
        layer, head, length = self.net.layer, self.net.head, self.task.length
        if not isinstance(layer, OrthogonalRNN):
            return [torch.optim.Adam(self.net.parameters(), lr=self.rate)]
        cell = layer.cell
        free = self.rate if method == "fixed" else self._rates.free
        groups: list[dict[str, Any]] = [
            {"params": [*cell.input.parameters(), *head.parameters()], "lr": free},
            {"params": [*cell.activation.parameters()], "lr": self._rates.bias / length},
        ]
        if method == "fixed":
            cell.weight_hh.requires_grad_(False)
            return [torch.optim.RMSprop(groups, alpha=0.9)]
        lr = self.rate / length
        if method == "geotorch":
            import geotorch

            start = cell.weight_hh.detach().clone()
            geotorch.orthogonal(cell, "weight_hh")
            cell.weight_hh = start  # type: ignore[assignment]
            parametrised: Any = cell.parametrizations
            groups.append({"params": [*parametrised.weight_hh.parameters()], "lr": lr})
            return [torch.optim.RMSprop(groups, alpha=0.9)]
        flow: torch.optim.Optimizer
        # The gradient goes through the whole sequence; beside it an exact step costs little.
        if method == "FlowSGD":
            flow = FlowSGD([cell.weight_hh], lr, momentum=0.9, block_size="dense")
        else:
            flow = FlowAdam([cell.weight_hh], lr, block_size="dense")
        return [flow, torch.optim.RMSprop(groups, alpha=0.9)]

    def run(self, num_steps: int) -> float | None:
        """Take steps; returns their mean loss, or None as soon as a number is not finite."""
        losses = []
        try:
            for _ in range(num_steps):
                x, y = self.task.batch(self.step)
                loss = self.task.loss(self.net, x, y)
                self.net.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                for optimizer in self.optimizers:
                    optimizer.step()
                losses.append(loss.detach())
                self.step += 1
        except NonFiniteGradientError:
            return None
        mean = torch.stack(losses).mean()
        return float(mean) if mean.isfinite() else None

    def error(self) -> float | None:
        r"""$\|W^\top W - I\|_F / \sqrt d$ of the transition, where it should be orthogonal."""
        if not isinstance(self.net.layer, OrthogonalRNN):
            return None
        return relative_error(self.net.layer.cell.weight_hh)
