"""A neural ordinary differential equation whose weight flows on O(d) (Sec. 9.9)."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .. import _validate
from ..errors import ShapeError
from ..tournaments.families import circle
from .init import orthogonal_
from .reversible import Flow, adjoint, march

Generator = Callable[[Tensor, Tensor], Tensor]
"""Maps the time and W to a matrix whose skew part is the generator of W."""
METHODS = ("exact", "stochastic", "strang")
GRADIENTS = ("autograd", "adjoint")


class BracketGenerator(nn.Module):
    r"""The trained matrix $M(t, W) = U_0 + t U_1 + W^\top V$; its skew part is a generator.

    With U = 0 the flow $W' = W (M - M^\top)/2$ is the gradient flow of
    $\frac12 \mathrm{tr}(W^\top V)$ in the reverse form of Eq. 3. The paper names no generator for
    Sec. 9.9; this one is the simplest that depends on both. It starts small, so W hardly moves.

    Args:
        d: Number of rows of W.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    def __init__(
        self,
        d: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.U = nn.Parameter(torch.empty(2, d, d, device=device, dtype=dtype))
        self.V = nn.Parameter(torch.empty(d, d, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw small entries with torch's global generator."""
        nn.init.normal_(self.U, std=0.1 / self.V.shape[0] ** 0.5)
        nn.init.normal_(self.V, std=0.1 / self.V.shape[0] ** 0.5)

    def forward(self, t: Float[Tensor, ""], W: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
        """The matrix at a time and a point."""
        return self.U[0] + t * self.U[1] + W.mT @ self.V


class OrthogonalODE(nn.Module):
    r"""The flow of $x' = f(W(t) x + b)$, $W' = W\,\Omega_\theta(t, W)$ from time 0 to T.

    W starts in O(d), at a weight that is marked as orthogonal and trained by `FlowSGD` or
    `FlowAdam`. It stays there because each step multiplies it by a rotation, in float64. As its
    singular values are one, the equation changes the length of a gradient by at most the factor
    $e^T$ either way if $|f'| \le 1$; with a free weight the bound is $e^{T \|W\|}$. The paper's
    appendix names neural equations on compact manifolds (Sec. 9.9); they are those of Choromanski
    et al., "Ode to an ODE", NeurIPS 2020.

    The integrator is the leapfrog of two copies, half a step apart, each moved by the velocity at
    the other: of second order with the methods "exact" and "strang", and reversible. The adjoint
    gradient runs it backwards and needs the memory of one step; it is the gradient of the steps
    themselves, not of the continuous equation. The leapfrog is not meant for stiff equations.

    Args:
        d: Number of inputs and outputs.
        num_steps: Number of steps.
        time: T.
        method: The rotation of a step of W, from $A = \eta\,\Omega$: "exact" is exp(A);
            "stochastic" turns the planes of a random matching by an unbiased estimate, as Eq. 9;
            "strang" turns all planes in the order of `tournaments.round_robin` and back, by halves.
        gradient: "adjoint" for constant memory, or "autograd" through the steps. Both give the
            same numbers to rounding. `torch.compile`, `torch.func` and second derivatives always
            use autograd.
        generator: A module, called with the time and W, whose result M gives
            $\Omega_\theta = (M - M^\top)/2$; a `BracketGenerator` when omitted. It must not depend
            on random numbers or other state.
        activation: f, a function without parameters; tanh when omitted.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        BlockSizeError: If d is below two.
        ValueError: If the method or the way of differentiation is unknown, `num_steps` is below
            one, `time` is not positive, or the activation has parameters.
        TypeError: If the generator is not a module.

    Example:
        >>> layer = OrthogonalODE(4, num_steps=10)
        >>> x = torch.randn(3, 4, requires_grad=True)
        >>> y = layer(x)
        >>> y.sum().backward()
        >>> y.shape, x.grad.shape
        (torch.Size([3, 4]), torch.Size([3, 4]))
    """

    orthogonal_names = ("weight",)

    def __init__(
        self,
        d: int,
        num_steps: int = 20,
        time: float = 1.0,
        *,
        method: Literal["exact", "stochastic", "strang"] = "exact",
        gradient: Literal["adjoint", "autograd"] = "adjoint",
        generator: nn.Module | None = None,
        activation: Callable[[Tensor], Tensor] = torch.tanh,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _validate.block_size(2, d)
        _validate.count(num_steps, "num_steps")
        _validate.one_of(method, METHODS, "method")
        _validate.one_of(gradient, GRADIENTS, "gradient")
        if not 0 < time < float("inf"):
            raise ValueError(f"`time` must be positive and finite: got {time}.")
        _check_modules(generator, activation)
        self.num_steps, self.time, self.method, self.gradient = num_steps, time, method, gradient
        self.activation = activation
        self.weight = nn.Parameter(torch.empty(d, d, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(d, device=device, dtype=dtype))
        self.generator = BracketGenerator(d, device, dtype) if generator is None else generator
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw W(0) from Haar measure, and that of a `BracketGenerator`; the bias becomes zero."""
        orthogonal_(self.weight)
        nn.init.zeros_(self.bias)
        if isinstance(self.generator, BracketGenerator):
            self.generator.reset_parameters()

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """x(T) from x(0), in the dtype of `x`.

        Raises:
            ShapeError: If the last dimension is not d.
            DtypeError: If `x` is not real and floating.
        """
        return self.end(x)[0]

    def end(
        self, x: Float[Tensor, "*batch d"], W: Float[Tensor, "d d"] | None = None
    ) -> tuple[Float[Tensor, "*batch d"], Float[Tensor, "d d"]]:
        """x(T), and W(T) in float64.

        Args:
            x: x(0).
            W: W(0), the weight of the layer when omitted. With the W(T) of a call the flow goes on
                where that call ended; the time starts at 0 again.

        Raises:
            ShapeError: If the last dimension of `x` is not d, or W is not (d, d).
            DtypeError: If one of them is not real and floating.
        """
        _validate.floating(x, "x")
        d = len(self.bias)
        if x.ndim < 1 or x.shape[-1] != d:
            raise ShapeError(
                f"`x` must have the shape (*batch, {d}): got {tuple(x.shape)}. "
                "The last dimension is the number of inputs."
            )
        W = self.weight if W is None else W
        _validate.floating(W, "W")
        if W.shape != (d, d):
            raise ShapeError(f"`W` must have the shape ({d}, {d}): got {tuple(W.shape)}.")
        sweep = _sweep(d, x.device) if self.method == "strang" else None
        seed = torch.randint(2**31, (), device=x.device) if self.method == "stochastic" else None
        flow = Flow(
            self.method,
            self.num_steps,
            self.time,
            self.activation,
            self.generator,
            sweep,
            seed,
        )
        wide = torch.promote_types(x.dtype, torch.float32)
        start = x.to(wide), W.to(torch.float64)
        transformed = torch._C._are_functorch_transforms_active()
        plain = transformed or torch.compiler.is_compiling() or self.gradient == "autograd"
        run = march if plain else adjoint
        x_end, W_end = run(flow, *start, self.bias)
        return x_end.to(x.dtype), W_end

    def extra_repr(self) -> str:
        """The arguments that `print` shows."""
        return (
            f"d={len(self.bias)}, num_steps={self.num_steps}, time={self.time}, "
            f"method={self.method!r}, gradient={self.gradient!r}"
        )


def _check_modules(generator: object, activation: object) -> None:
    """The adjoint finds the parameters of a module, and only those of the generator."""
    if generator is not None and not isinstance(generator, nn.Module):
        raise TypeError(
            f"`generator` must be a torch.nn.Module: got {type(generator).__name__}. Make a module "
            "whose forward takes the time and W."
        )
    if isinstance(activation, nn.Module) and any(True for _ in activation.parameters()):
        raise ValueError(
            f"`activation` must have no parameters: got {type(activation).__name__}. Use a "
            "function, or a module without parameters."
        )


def _sweep(d: int, device: torch.device) -> Int[Tensor, "n m 2"]:
    """All planes in the order of `tournaments.round_robin`, and then in the reverse order."""
    pairs = circle(d, torch.arange(d - 1 + d % 2, device=device)).to(torch.int32)
    return torch.cat([pairs, pairs.flip(0)])
