r"""The integrator with fixed steps for $X' = \Omega(t, X) X$ (Eq. 3, 4 and 7)."""

import copy
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from .. import _validate
from ..geometry.precision import no_autocast
from ..geometry.retractions import cayley, expm
from ..kernels.rotate_blocks.reference import rotate_blocks
from ..samplers import Sampler
from .fields import Field
from .trajectory import Step, Trajectory, check_start, march

Retraction = str | Callable[[Float[Tensor, "*batch d d"]], Float[Tensor, "*batch d d"]]

RETRACTIONS = {"exp": expm, "cayley": cayley}
"""The maps from Sk(d) to SO(d) that have a name."""


@no_autocast()
def integrate(
    field: Field,
    X0: Float[Tensor, "*batch d k"],
    eta: float,
    num_steps: int,
    *,
    sampler: Sampler | Sequence[Sampler] | None = None,
    num_draws: int = 1,
    retraction: Retraction = "exp",
    generator: torch.Generator | None = None,
    t0: float = 0.0,
    record_every: int | None = None,
) -> Trajectory:
    r"""Integrate a field with the exact generator (Eq. 4) or with sampled blocks of it (Eq. 7).

    Without a sampler a step is $X \leftarrow \Gamma(\eta\Omega) X$. With a sampler, $\Omega$ is
    replaced by an unbiased estimate and each of its blocks is applied by itself (Eq. 8). With
    `num_draws` = m the step is a product of m steps of size $\eta/m$ with m estimates at the same
    point (not in the paper): ``RoundRobin()`` draws these m matchings without replacement and
    ``RoundRobin(replacement=True)`` with replacement. All of these are of first order in $\eta$;
    `integrate_strang` and `integrate_adaptive` have higher order. In the reverse form, a field with
    ``side="right"``, the blocks are blocks of columns.

    Args:
        field: The generator for each time and point.
        X0: Starting points with orthonormal columns; a batch is integrated at once.
        eta: Step size; a positive one ascends along a gradient field.
        num_steps: Number of steps.
        sampler: None for the exact generator. A single sampler is copied for each matrix; a list
            with one sampler for each matrix is used without a copy, so that the next call can
            continue their sweeps.
        num_draws: Number of estimates at each point.
        retraction: "exp" or "cayley"; without a sampler any map from generators to rotations, such
            as ``lambda A: geometry.taylor(A, 20)``.
        generator: Source of randomness of the sampler; in each step the matrices draw in order.
        t0: Time at the start.
        record_every: Interval, in steps, of the recorded points, which then include the start; None
            records the last point only.

    Example:
        >>> from skewflow.flows import Brockett
        >>> from skewflow.geometry import haar
        >>> from skewflow.samplers import Uniform
        >>> field = Brockett(torch.diag(torch.arange(6.0)), torch.tensor([2.0, 1.0]))
        >>> X0 = haar(6, 2, generator=torch.Generator().manual_seed(0))
        >>> path = integrate(field, X0, 0.02, 2000, sampler=Uniform(2),
        ...                  generator=torch.Generator().manual_seed(0))
        >>> path.last.abs().argmax(0)  # the two largest eigenvalues
        tensor([5, 4])
    """
    check_field(field)
    check_start(X0, field.side, eta, num_steps, record_every)
    _validate.count(num_draws, "num_draws")
    if sampler is None:
        if num_draws > 1:
            raise ValueError(
                f"`num_draws` is for a sampler: got num_draws={num_draws} without one. "
                "The exact generator needs no second draw. Omit it, or pass `sampler`."
            )
        step = _exact_step(field, eta, _retraction_map(retraction))
    else:
        _validate.one_of(retraction, ("exp", "cayley"), "retraction")
        if generator is None:
            raise TypeError("`generator` is needed with a sampler: pass a torch.Generator.")
        _validate.generator(generator)
        name: Literal["exp", "cayley"] = "cayley" if retraction == "cayley" else "exp"
        samplers = _samplers_of_matrices(sampler, X0[..., 0, 0].numel())
        step = _sampled_step(field, eta, samplers, num_draws, name, generator)
    with torch.no_grad():
        return march(step, X0, eta, num_steps, t0, record_every)


def _exact_step(field: Field, eta: float, retract: Callable[[Tensor], Tensor]) -> Step:
    def step(t: float, X: Tensor) -> Tensor:
        R = retract(eta * field(t, X))
        return R @ X if field.side == "left" else X @ R

    return step


def _sampled_step(
    field: Field,
    eta: float,
    samplers: Sequence[Sampler],
    num_draws: int,
    retraction: Literal["exp", "cayley"],
    generator: torch.Generator,
) -> Step:
    # The reverse form rotates columns: rows of the transpose, by transposed rotations.
    signed = (eta if field.side == "left" else -eta) / num_draws

    def step(t: float, X: Tensor) -> Tensor:
        rows = X if field.side == "left" else X.mT
        rotated = []
        weights = field.edge_weights(t, X)
        for Y, W, sampler in zip(
            rows.reshape(-1, *rows.shape[-2:]), weights, samplers, strict=True
        ):
            for _ in range(num_draws):  # W belongs to X, so all estimates are at the same point
                draw = sampler.sample(W, generator=generator)
                Y = rotate_blocks(Y, draw.partition, draw.blocks(W), signed, retraction)
            rotated.append(Y)
        Y = torch.stack(rotated).reshape(rows.shape)
        return Y if field.side == "left" else Y.mT

    return step


def _retraction_map(retraction: Retraction) -> Callable[[Tensor], Tensor]:
    if callable(retraction):
        return retraction
    _validate.one_of(retraction, tuple(RETRACTIONS), "retraction")
    return RETRACTIONS[retraction]


def _samplers_of_matrices(sampler: Sampler | Sequence[Sampler], count: int) -> Sequence[Sampler]:
    if isinstance(sampler, Sampler):
        return [copy.deepcopy(sampler) for _ in range(count)]
    if len(sampler) != count:
        raise ValueError(
            f"`sampler` must be one sampler or a list with one for each of the {count} matrices: "
            f"got a list of {len(sampler)}."
        )
    return sampler


def check_field(field: Field) -> None:
    """Check that `field` is a Field, and not a function."""
    if not isinstance(field, Field):
        raise TypeError(
            f"`field` must be a Field: got {type(field).__name__}. "
            'Wrap a function of (t, X) as `Field(function, side="left")`.'
        )
