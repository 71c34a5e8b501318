"""All methods of the races: each makes a run of a problem, given a learning rate.

A search tries learning rates around a `base`, at which a method's first step turns the start by
roughly a radian, so that the same search suits every method.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal

from skewflow.optim import AngleSGD, FlowAdam, FlowSGD, NaturalSGD
from skewflow.optim.options import block_size_for

from ..peers import RSDM, SPEL, CayleySGD, IntrinsicMuon, Landing, ManifoldMuon
from ..peers.baselines import free_parameters, geoopt, pogo
from . import conjugate_gradient
from .problem import Problem


@dataclass(frozen=True)
class Runner:
    """A run of a method on a problem.

    Args:
        step: Takes the step with the given number: gradient and update.
        point: Returns the current point.
        slow: Multiplies the learning rate by a part of it, before each step. None for methods whose
            steps become shorter with the gradient.
    """

    step: Callable[[int], None]
    point: Callable[[], Tensor]
    slow: Callable[[float], None] | None = None


@dataclass(frozen=True)
class Solver:
    """A method that cannot be interrupted and continued.

    Args:
        solve: Runs from the start for the given number of seconds; returns the seconds it took, its
            iterations, and its point.
    """

    solve: Callable[[float], tuple[float, int, Tensor]]


@dataclass(frozen=True)
class Method:
    """A method of minimisation.

    Args:
        make: Makes a run of a problem with a learning rate and a momentum.
        base: The middle of the learning rates for a problem.
        ours: Whether it is an optimiser of skewflow.
        factored: Whether it takes the factors of a gradient, if the problem has them.
        momentum: Whether it has a momentum.
        radians: Whether steps have a fixed length. Momentum does not lengthen them, and their
            rate falls on a line to zero at the end of a run.
        rates: Whether it has a learning rate.
        package: The package that must be installed.
        unfit: Returns the reason why it cannot solve a problem, or None.
    """

    make: Callable[[Problem, float, float], Runner | Solver]
    base: Callable[[Problem], float] = lambda problem: 1.0
    ours: bool = False
    factored: bool = False
    momentum: bool = False
    radians: bool = False
    rates: bool = True
    package: str | None = None
    unfit: Callable[[Problem], str | None] = lambda problem: None

    def excuse(self, problem: Problem) -> str | None:
        """The reason why it does not run, or None."""
        if self.package is not None and find_spec(self.package) is None:
            return f"{self.package} is not installed; pip install 'skewflow[peers]' brings it"
        return self.unfit(problem)


def of_points(
    make: Callable[..., torch.optim.Optimizer], radians: bool = False
) -> Callable[..., Runner]:
    """Runs of an optimiser of tall matrices, made by `make(matrices, lr, momentum, problem)`."""

    def made(problem: Problem, lr: float, momentum: float) -> Runner:
        optimizer = make([problem.start()], lr, momentum, problem)
        (p,) = optimizer.param_groups[0]["params"]

        def step(number: int) -> None:
            p.grad = problem.gradient(p.detach(), number)
            optimizer.step()

        def slow(part: float) -> None:
            optimizer.param_groups[0]["lr"] = lr * part

        return Runner(step, p.detach, slow if radians else None)

    return made


RADIANS = 0.2
"""The middle of the learning rates of steps by an angle."""


def by_angle(make: Callable[..., torch.optim.Optimizer], ours: bool = False) -> Method:
    """A method whose rate is the angle, in radians, by which a step turns its planes."""

    def made(matrices: list[Tensor], lr: float, mu: float, _: Problem) -> torch.optim.Optimizer:
        return make([nn.Parameter(X) for X in matrices], lr, momentum=mu)

    return Method(
        of_points(made, radians=True),
        base=lambda problem: RADIANS,
        ours=ours,
        momentum=True,
        radians=True,
    )


def flow(block_size: Any, *, factored: bool = False, natural: bool = False) -> Method:
    """FlowSGD with a block size, or natural steps.

    With `factored` it steps by the factors of gradients, if the problem has them; natural steps
    always do.
    """

    def make(
        matrices: list[Tensor], lr: float, momentum: float, _: Problem
    ) -> FlowSGD | NaturalSGD:
        params = [nn.Parameter(X) for X in matrices]
        if natural:
            return NaturalSGD(params, lr)
        return FlowSGD(params, lr, momentum=momentum, block_size=block_size)

    def by_factors(problem: Problem, lr: float, momentum: float) -> Runner:
        optimizer = make([problem.start()], lr, momentum, problem)
        (p,) = optimizer.param_groups[0]["params"]

        def step(number: int) -> None:
            factors = problem.factors(p.detach(), number)
            assert factors is not None
            optimizer.step(factors={p: factors})

        return Runner(step, p.detach)

    def made(problem: Problem, lr: float, momentum: float) -> Runner:
        how = by_factors if factored and problem.is_factored() else of_points(make)
        return how(problem, lr, momentum)

    def base(problem: Problem) -> float:
        """A step has the weight (d-1)/(s-1), and a block has about sqrt(s/d) of the whole norm."""
        d = problem.shape[-2]
        s = block_size_for(block_size, d)
        return 1.0 if isinstance(s, str) else (s - 1) / (d - 1) * (d / s) ** 0.5

    return Method(made, base, ours=True, factored=factored, momentum=not natural)


def flow_adam() -> Method:
    """FlowAdam with the block size "auto", on formed gradients."""

    def make(matrices: list[Tensor], lr: float, _: float, problem: Problem) -> FlowAdam:
        return FlowAdam([nn.Parameter(X) for X in matrices], lr, block_size="auto")

    def base(problem: Problem) -> float:
        """The rate for an angle of 0.1: a matrix with entries +-1 has a norm of about sqrt(d)."""
        return 0.1 / problem.shape[-2] ** 0.5

    return Method(of_points(make), base, ours=True)


def parametrised(
    constrain: Callable[[nn.Module], object], adam: bool, package: str | None = None
) -> Method:
    """Adam or SGD on the free parameters of a parametrised orthogonal matrix.

    The weight is computed once for each step, and the gradient is propagated back through it.
    """

    def make(problem: Problem, lr: float, momentum: float) -> Runner:
        layer = free_parameters(problem.start(), constrain)
        optimizer: torch.optim.Optimizer
        if adam:
            optimizer = torch.optim.Adam(layer.parameters(), lr=lr)
        else:
            optimizer = torch.optim.SGD(layer.parameters(), lr=lr, momentum=momentum)

        def step(number: int) -> None:
            optimizer.zero_grad()
            with torch.enable_grad():
                W: Any = layer.weight
                W.backward(problem.gradient(W.detach(), number))
            optimizer.step()

        return Runner(step, lambda: layer.weight.detach())  # type: ignore[operator]

    return Method(make, _adam_base if adam else _one, momentum=not adam, package=package)


def _one(problem: Problem) -> float:
    return 1.0


def _adam_base(problem: Problem) -> float:
    """Adam moves every entry by the rate, and a matrix of entries +-1 has a norm of sqrt(d)."""
    return 0.1 / problem.shape[-2] ** 0.5


def _vector_adam_base(problem: Problem) -> float:
    """Steps divided by the norm of the whole gradient have columns of length 1 / sqrt(k)."""
    return 0.1 * problem.shape[-1] ** 0.5


def _geotorch(layer: nn.Module) -> None:
    import geotorch

    geotorch.orthogonal(layer, "weight")


def _geoopt(adam: bool) -> Method:
    """geoopt: its canonical manifold for square matrices, its Euclidean one for thin ones."""

    def make(matrices: list[Tensor], lr: float, momentum: float, problem: Problem) -> Any:
        d, k = problem.shape[-2:]
        return geoopt(matrices, lr, momentum, adam=adam, canonical=d == k)

    return Method(
        of_points(make), _vector_adam_base if adam else _one, momentum=not adam, package="geoopt"
    )


def _pogo(adam: bool) -> Method:
    def make(matrices: list[Tensor], lr: float, momentum: float, _: Problem) -> Any:
        return pogo(matrices, lr, momentum, adam=adam)

    return Method(
        of_points(make), _vector_adam_base if adam else _one, momentum=not adam, package="pogo"
    )


def _peer(make: Callable[..., torch.optim.Optimizer], momentum: bool, **options: Any) -> Method:
    def made(matrices: list[Tensor], lr: float, mu: float, _: Problem) -> torch.optim.Optimizer:
        extra = {"momentum": mu} if momentum else {}
        return make([nn.Parameter(X) for X in matrices], lr, **extra, **options)

    return Method(of_points(made), momentum=momentum)


def _pymanopt(problem: Problem, lr: float, momentum: float) -> Solver:
    return Solver(partial(conjugate_gradient.solve, problem))


def _unfactored(problem: Problem) -> str | None:
    return None if problem.is_factored() else "its gradients are no products of thin factors"


OURS: Mapping[str, Method] = {
    "auto": flow("auto", factored=True),
    "auto-adam": flow_adam(),
    "auto-natural": replace(flow("auto", factored=True, natural=True), unfit=_unfactored),
    "auto-angle": by_angle(AngleSGD, ours=True),
    "s=2": flow(2),
    "s=16": flow(16),
    "s=64": flow(64),
    "dense": flow("dense"),
    "factored": replace(flow("dense", factored=True), unfit=_unfactored),
}
"""Our methods: "auto" of each optimiser, and FlowSGD with a fixed size."""

METHODS: Mapping[str, Method] = {
    **OURS,
    "pogo": _pogo(adam=False),
    "pogo-adam": _pogo(adam=True),
    "geoopt-sgd": _geoopt(adam=False),
    "geoopt-adam": _geoopt(adam=True),
    "torch-sgd": parametrised(orthogonal, adam=False),
    "torch-adam": parametrised(orthogonal, adam=True),
    "geotorch-sgd": parametrised(_geotorch, adam=False, package="geotorch"),
    "geotorch-adam": parametrised(_geotorch, adam=True, package="geotorch"),
    "landing": _peer(Landing, momentum=True),
    "rsdm-permutation": _peer(RSDM, momentum=False, permutation=True),
    "rsdm-orthogonal": _peer(RSDM, momentum=False, permutation=False),
    "cayley-sgd": _peer(CayleySGD, momentum=True),
    "spel": by_angle(SPEL),
    "imuon": by_angle(IntrinsicMuon),
    "manifold-muon": by_angle(ManifoldMuon),
    "pymanopt-cg": Method(
        _pymanopt, rates=False, package="pymanopt", unfit=conjugate_gradient.excuse
    ),
}
"""All methods, by the name in tables."""
