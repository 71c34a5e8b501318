"""One of two processes: it runs every check, and writes down what happened.

Each check runs in both processes at once; test_sharded.py starts them.
"""

import json
import os
import re
import sys
import traceback
import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
from torch import distributed as dist

from processes import models, weights
from processes.shards import OPTIMIZERS
from processes.traffic import traffic


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
    several = [weights.rows_of_a_square, weights.replicated, weights.beside_others, traffic]
    several += [weights.gathered, weights.large_angles]
    several += [weights.wrong_layouts, weights.gradients_that_are_not_finite, weights.guard]
    several += [weights.orthogonality, weights.agreement, weights.reports]
    several += [models.fully_sharded, models.sharded_later, models.hybrid, models.tensor_parallel]
    named |= {check.__name__: check for check in several}
    named["clipped and accumulated"] = lambda: models.fully_sharded(clip=0.05, accumulate=2)
    named["checkpoints"] = lambda: models.checkpoints(folder)
    return named


def main(rank, folder):
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "a step turns a plane")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2,
        timeout=timedelta(seconds=120),
    )  # fmt: skip
    results, only = {}, os.environ.get("SKEWFLOW_CHECK", "")  # to look at one
    for name, check in checks(folder).items():
        if not re.search(only, name):
            continue
        try:
            results[name] = ["passed", check()]
        except Exception:
            results[name] = ["failed", traceback.format_exc()]
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # threads of torch abort a process now and then that ends by itself


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
