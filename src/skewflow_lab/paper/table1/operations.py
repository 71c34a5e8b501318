"""Operations of one update of one matrix, by each method of Table 1."""

import torch
from torch import Tensor

from skewflow.geometry import expm, omega, project
from skewflow.kernels import rotate_blocks, rotate_pairs
from skewflow.samplers import Balanced, Uniform
from skewflow.tournaments import EdgeWeights, edge_probability

from ...measure.flops import flops
from ...models.methods import r_star

ABS, UNIFORM = "stochastic s = 2, h = |x|", "stochastic s = 2, uniform"

DRAWS = 100
"""Number of draws for the mean number of entries that h = |x| reads."""


def count_all(
    X: Tensor, G: Tensor, eta: float, generator: torch.Generator
) -> dict[str, dict[str, int]]:
    """The operations of every method of Table 1 on one matrix, by part."""
    d = len(X)
    found = {"exact": _exact(X, G, eta)}
    found[UNIFORM] = _stochastic(X, G, eta, 2, generator)
    found["stochastic s = r*"] = _stochastic(X, G, eta, r_star(d), generator)
    found[ABS] = found[UNIFORM] | {"entries": _weighted_entries(X, G, generator)}
    update = flops(lambda: X.sub(G, alpha=eta))
    whole = flops(lambda: project(X))
    for p in (20, 10, 8, 5, 4):
        found[f"projection p = {p}"] = {"entries": 0, "map": round(whole / p), "update": update}
    return found


def _exact(X: Tensor, G: Tensor, eta: float) -> dict[str, int]:
    A = eta * omega(X, G)
    R = expm(A)
    return {
        "entries": flops(lambda: eta * omega(X, G)),
        "map": flops(lambda: expm(A)),
        "update": flops(lambda: R @ X),
    }


def _stochastic(
    X: Tensor, G: Tensor, eta: float, s: int, generator: torch.Generator
) -> dict[str, int]:
    W = EdgeWeights(X, G)
    t = Uniform(s).sample(W, generator=generator)
    if s == 2:
        pairs = t.partition.blocks[0]
        scale = eta / float(edge_probability(len(X), 2))
        theta = scale * W.entries(pairs)
        # A plane turns by a sine and a cosine: they are the exponential, counted with the update.
        return {
            "entries": flops(lambda: scale * W.entries(pairs)),
            "map": 0,
            "update": flops(lambda: rotate_pairs(X, pairs, theta)),
        }
    blocks = t.blocks(W)
    both = flops(lambda: rotate_blocks(X, t.partition, blocks, eta))
    exponentials = sum(flops(lambda b=b: expm(eta * b)) for b in blocks)  # type: ignore[misc]
    return {
        "entries": flops(lambda: t.blocks(EdgeWeights(X, G))),  # W would not compute them again
        "map": exponentials,
        "update": both - exponentials,
    }


def _weighted_entries(X: Tensor, G: Tensor, generator: torch.Generator) -> int:
    """Operations on entries of a draw with h = |x|, the mean of some draws.

    Compiled code draws them, which the counter does not see. So the counter counts one entry, and
    `EdgeWeights` the number of entries. Each is added to a sum; those of the matching are scaled.
    """
    W = EdgeWeights(X, G)
    entry = flops(lambda: W.entries(torch.tensor([[0, 1]])))
    read = 0
    for _ in range(DRAWS):
        W = EdgeWeights(X, G)
        Balanced(2).sample(W, generator=generator)
        read += W.evaluated
    return round(read / DRAWS * (entry + 1)) + len(X) // 2
