r"""Integrators with fixed steps for $X' = \Omega(t, X) X$ (Eq. 3, 4 and 7)."""

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
    r"""Follow a field with the whole generator (Eq. 4) or with sampled blocks of it (Eq. 7).

    Without a sampler a step is $X \leftarrow \Gamma(\eta\Omega) X$. With one, $\Omega$ is replaced
    by an unbiased estimate, whose blocks turn one by one (Eq. 8); with `num_draws` = m it is the
    mean of m estimates at the same point, applied as a product of m steps of size $\eta/m$ each
    (not in the paper). Then ``RoundRobin()`` draws the m matchings without replacement and
    ``RoundRobin(replacement=True)`` with. All of these are of first order in $\eta$; see
    `integrate_strang` and `integrate_adaptive` for more. In the reverse form, a field with
    ``side="right"``, blocks of columns turn.

    Args:
        field: The generator for each time and point.
        X0: Starting points with orthonormal columns; a batch is followed at once.
        eta: Step size; positive ascends along a gradient field.
        num_steps: How many steps.
        sampler: None for the whole generator. One sampler is copied for each matrix; a list with
            one for each matrix is used as it is, so that a sweep can go on in the next call.
        num_draws: Estimates at each point.
        retraction: "exp" or "cayley"; without a sampler any map from generators to rotations, such
            as ``lambda A: geometry.taylor(A, 20)``.
        generator: Randomness of the sampler; matrices draw in their order, step by step.
        t0: Time at the start.
        record_every: Keep the start and every such step; None keeps only the last point.

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
                "The whole generator needs no second draw."
            )
        step = _exact_step(field, eta, _map_of(retraction))
    else:
        _validate.one_of(retraction, ("exp", "cayley"), "retraction")
        if generator is None:
            raise TypeError("`generator` is needed with a sampler: pass a torch.Generator.")
        _validate.generator(generator)
        name: Literal["exp", "cayley"] = "cayley" if retraction == "cayley" else "exp"
        samplers = _one_for_each(sampler, X0[..., 0, 0].numel())
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
    # The reverse form turns columns: rows of the transpose, by the transposed rotations.
    signed = (eta if field.side == "left" else -eta) / num_draws

    def step(t: float, X: Tensor) -> Tensor:
        rows = X if field.side == "left" else X.mT
        turned = []
        weights = field.edge_weights(t, X)
        for Y, W, sampler in zip(
            rows.reshape(-1, *rows.shape[-2:]), weights, samplers, strict=True
        ):
            for _ in range(num_draws):  # W stays that of X: all estimates are at the same point
                draw = sampler.sample(W, generator=generator)
                Y = rotate_blocks(Y, draw.partition, draw.blocks(W), signed, retraction)
            turned.append(Y)
        Y = torch.stack(turned).reshape(rows.shape)
        return Y if field.side == "left" else Y.mT

    return step


def _map_of(retraction: Retraction) -> Callable[[Tensor], Tensor]:
    if callable(retraction):
        return retraction
    _validate.one_of(retraction, tuple(RETRACTIONS), "retraction")
    return RETRACTIONS[retraction]


def _one_for_each(sampler: Sampler | Sequence[Sampler], count: int) -> Sequence[Sampler]:
    if isinstance(sampler, Sampler):
        return [copy.deepcopy(sampler) for _ in range(count)]
    if len(sampler) != count:
        raise ValueError(
            f"`sampler` must be one sampler or a list with one for each of the {count} matrices: "
            f"got {len(sampler)} of them."
        )
    return sampler


def check_field(field: Field) -> None:
    """`field` is a Field, not a bare function."""
    if not isinstance(field, Field):
        raise TypeError(
            f"`field` must be a Field: got {type(field).__name__}. "
            'Wrap a function of (t, X) as `Field(function, side="left")`.'
        )
