"""Differential equations and residual nets of one width, in a classifier or along a sequence."""

import copy
from collections.abc import Sequence
from typing import Literal, Protocol, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from skewflow.nn import OrthogonalODE

from ...runs.seeds import spawn

Method = Literal["exact", "stochastic", "strang", "plain", "residual"]
"""`OrthogonalODE` by its method; an equation with a free weight; and a residual net."""
ORTHOGONAL: tuple[Method, ...] = ("exact", "stochastic", "strang")

States = Float[Tensor, "*batch d"]


class Flow(Protocol):
    """What the equations and the net have in common."""

    num_steps: int
    time: float

    def end(self, x: States, W: Tensor | None) -> tuple[States, Tensor | None]:
        """The state after all steps, and W(T) where it flows; it starts at the W that is given."""


class PlainODE(nn.Module):
    r"""$x' = \tanh(W x + t u + b)$ by the midpoint rule, with a free weight W (Chen et al. 2018).

    A step evaluates the right-hand side twice, as one of `OrthogonalODE` does.
    """

    def __init__(self, d: int, num_steps: int, time: float) -> None:
        super().__init__()
        self.num_steps, self.time = num_steps, time
        self.linear = nn.Linear(d, d)
        self.drift = nn.Parameter(torch.zeros(d))

    def end(self, x: States, W: None = None) -> tuple[States, None]:
        """x(T)."""
        eta = self.time / self.num_steps
        for n in range(self.num_steps):
            middle = x + eta / 2 * self._velocity(x, n * eta)
            x = x + eta * self._velocity(middle, (n + 0.5) * eta)
        return x, None

    def _velocity(self, x: States, t: float) -> States:
        return torch.tanh(self.linear(x) + t * self.drift)


class ResidualNet(nn.Module):
    """Blocks x + tanh(W x + b), each with its own weight, as many as an equation has steps."""

    def __init__(self, d: int, num_steps: int) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.time = float(num_steps)
        self.blocks = nn.ModuleList(nn.Linear(d, d) for _ in range(num_steps))

    def end(self, x: States, W: None = None) -> tuple[States, None]:
        """The result of the last block."""
        for block in list(self.blocks)[: self.num_steps]:
            x = x + torch.tanh(block(x))
        return x, None


def make_flow(method: Method, d: int, num_steps: int, time: float) -> nn.Module:
    """The equation, or the net, of a method."""
    if method == "plain":
        return PlainODE(d, num_steps, time)
    if method == "residual":
        return ResidualNet(d, num_steps)
    # Gradients through the steps are as good as those of the adjoint, and faster at this size.
    return OrthogonalODE(d, num_steps, time, method=method, gradient="autograd")


def gradient_norms(flow: nn.Module, x: States, depths: Sequence[int], seed: int) -> list[float]:
    """How much of a gradient at each of these steps reaches the start x of the flow.

    The mean, over the batch, of the length that a random gradient of length 1 has at x.
    """
    found = []
    for depth in depths:
        part = cast(Flow, copy.deepcopy(flow))
        part.num_steps, part.time = depth, depth * part.time / part.num_steps
        x = x.detach().requires_grad_()
        end, _ = part.end(x, None)
        up = torch.randn(end.shape, generator=spawn(seed, "up", depth))
        (g,) = torch.autograd.grad(end, x, up / up.norm(dim=-1, keepdim=True))
        found.append(float(g.norm(dim=-1).mean()))
    return found


class Reader(nn.Module):
    """A flow between linear layers, which reads a sequence of vectors.

    With `driven` the entries are a force, x' = f(x) + u: before the flow takes the state on, an
    entry is added to it, times the length of that piece of time. W(t) flows on along the whole
    sequence. Otherwise the entries are added as they are; so one entry is the start of the flow.
    """

    def __init__(
        self,
        method: Method,
        inputs: int,
        d: int,
        *,
        num_steps: int,
        time: float,
        classes: int,
        driven: bool,
    ) -> None:
        super().__init__()
        self.stem = nn.Linear(inputs, d)
        self.flow = make_flow(method, d, num_steps, time)
        self.head = nn.Linear(d, classes)
        self._scale = cast(float, self.flow.time) if driven else 1.0

    def forward(self, x: Float[Tensor, "l b i"]) -> Float[Tensor, "b c"]:
        """The logits after the last entry."""
        logits: Tensor = self.head(self.end(x)[0])
        return logits

    def end(self, x: Float[Tensor, "l b i"]) -> tuple[States, Tensor | None]:
        """The last state, and W at the end where it flows."""
        entries = self._scale * self.stem(x)
        state, W = torch.zeros_like(entries[0]), None
        for entry in entries:
            state, W = cast(Flow, self.flow).end(state + entry, W)
        return state, W
