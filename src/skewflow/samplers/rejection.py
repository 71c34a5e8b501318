"""Accept-reject sampling of h-regular tournaments (Algorithm 1)."""

import torch

from ..errors import BalanceError, SamplingError
from ..tournaments.edge_weights import EdgeWeights
from ..tournaments.partition_weights import partition_weight
from ..tournaments.partitions import BlockSize, Partition, edge_probability
from ..tournaments.weight_functions import H
from . import _draw
from .uniform import Uniform

PATIENCE = 1000
"""A draw gives up after this many times the expected number of trials. If `tau` is right this has a
probability of exp(-1000)."""


def reject(
    W: EdgeWeights,
    block_size: BlockSize,
    h: H,
    *,
    tau: float,
    rho: float,
    generator: torch.Generator,
    why: str,
) -> tuple[Partition, float, int]:
    r"""Draw T uniformly until it is accepted with probability $q_T = 2h(G_T)/\tau$.

    The law of the result is h-regular exactly when no $q_T$ exceeds 1. The number of trials is
    geometric, not Poisson, with mean $\frac{d-1}{s-1}\frac{\tau}{\|h(\Omega)\|_1}$.

    Args:
        W: The tournament.
        block_size: As in `Uniform`.
        h: Weight function.
        tau: A bound on $2\max h(G_T)$.
        rho: $\tau/\|h(\Omega)\|_1$, from which the expected number of trials follows.
        generator: Source of randomness.
        why: Origin of `tau`, for the error message.

    Returns:
        T, $h(G_T)$, and the number of trials.

    Raises:
        BalanceError: If some $q_T > 1$: then `tau` is no bound, and to continue would be biased.
        SamplingError: If nothing is accepted in 1000 times the expected number of trials.
    """
    proposal = Uniform(block_size)
    expected = rho / float(edge_probability(W.d, block_size))
    limit = int(PATIENCE * max(1.0, expected))
    slack = 1e3 * torch.finfo(W.dtype).eps  # q = 1 occurs, e.g. for s = d, and may round up
    for trial in range(1, limit + 1):
        T = proposal.sample(W, generator=generator).partition
        weight = partition_weight(W, T, h)
        q = 2 * weight / tau
        if q > 1 + slack:
            raise BalanceError(balance_message(q, why, q))
        if _draw.uniform(generator) < q:
            return T, weight, trial
    raise SamplingError(
        f"no partition was accepted in {limit} trials, where about {expected:.3g} were expected "
        f"from {why}: tau={tau:.3g} is too large. Use method='edge', which never rejects."
    )


def balance_message(q: float, why: str, bound: float) -> str:
    """The error message for acceptance probabilities that exceed 1, or may do so."""
    return (
        f"no acceptance probability may exceed 1: with {why} a heavy partition has q_T = {q:.3g}, "
        f"and the certified bound on q_T is {bound:.3g}. Clipping would be biased. Omit `alpha` "
        "and `beta` for a certified bound, lower them, or use method='edge', which never rejects."
    )
