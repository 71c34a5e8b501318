"""One of two processes: it runs every check, and writes down what happened.

Each check runs in both processes at once; test_sharded.py starts them.
"""

import sys
from functools import partial
from itertools import product

import torch

from processes import convolutions, models, refusals, weights
from processes.shards import OPTIMIZERS, run_checks
from processes.traffic import counts, gathers_of_dtensor


def checks(folder):
    """Every check by its name."""
    some = ("nesterov", "rms angle")
    kinds = [(kind, torch.float64) for kind in OPTIMIZERS if kind not in some]
    kinds.append(("momentum", torch.float32))
    more = [(kind, torch.float64) for kind in some]
    more += [("sgd", torch.float32), ("adam", torch.float32)]
    cases = [(name, *kind) for name in weights.PLACED for kind in kinds]
    cases += [(name, *kind) for name in ("tall s=2", "tall s=8", "tall exact") for kind in more]
    named = {
        f"{name}, {kind}, {t}": partial(weights.equal, name, kind, t) for name, kind, t in cases
    }
    several = [weights.rows_of_a_square, weights.replicated, weights.beside_others, counts]
    several += [weights.gathered, weights.large_angles, weights.by_factors, weights.guard]
    several += [weights.orthogonality, weights.agreement, weights.reports, weights.copies]
    several += [refusals.wrong_layouts, refusals.gradients_that_are_not_finite]
    several += [refusals.factors_that_are_not_finite, refusals.whole_weights_that_are_refused]
    several += [models.sharded_later, models.hybrid, models.tensor_parallel, models.tied]
    several += [gathers_of_dtensor]
    named |= {check.__name__: check for check in several}
    for kind, size in product(("sgd", "momentum", "adam", "angle"), (2, 8, "dense")):
        for t in (torch.float64, torch.float32):
            if (kind, size, t) == ("angle", "dense", torch.float32):
                continue  # it follows small planes, too, which float32 rounds to 1e-5
            run = partial(models.fully_sharded, kind, size, t)
            named[f"fully_shard, {kind}, s={size}, {t}"] = run
    named["clipped and accumulated"] = partial(models.fully_sharded, clip=0.05, accumulate=2)
    named |= convolutions.checks()
    named["checkpoints"] = lambda: models.checkpoints(folder)
    return named


if __name__ == "__main__":
    run_checks(checks(sys.argv[2]), int(sys.argv[1]), sys.argv[2], size=2)
