"""The CUDA kernels in Triton's interpreter give the bits that were recorded.

`TRITON_INTERPRET=1 python tests/kernels/test_golden.py` records them anew, see golden/cases.py.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from golden.cases import digest
from helpers import randn, random_stiefel
from skewflow.kernels.exact_polar import dispatch
from skewflow.kernels.exact_polar._small_triton import plan_small_polar
from skewflow.kernels.natural_factors._launches_triton import NaturalWorkspace as Natural
from skewflow.kernels.recurrence.by_hand import recurrence_by_hand
from skewflow.kernels.rotate_blocks._launches_triton import plan_blocks
from skewflow.kernels.rotate_factored._launches_triton import FactoredWorkspace as Factored
from skewflow.kernels.rotate_pairs._triton import plan_pairs
from triton_cases import INTERPRETED, Case

FILE = Path(__file__).parent.parent / "golden" / "triton.json"
OPTIONS = {
    "plain": {},
    "many": {"num": 3, "n": 2, "momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True, "maximize": True, "retraction": "cayley"},
    "low": {"num": 2, "grad": torch.bfloat16, "low": torch.bfloat16, "momentum": 0.5},
}
PLANS = {
    "pairs": (plan_pairs, (20, 7)),
    "blocks of 3": (plan_blocks, (20, 7), 3),
    "blocks of 16": (plan_blocks, (40, 6), 16),
    "blocks of 70": (plan_blocks, (140, 5), 70),
    "polar": (plan_small_polar, (30, 17)),
}
LEFT_OUT = {("blocks of 70", "nesterov"), ("polar", "nesterov")}
"""Large blocks have no Cayley transform, and exact steps no Nesterov momentum."""
LEFT_OUT |= {("blocks of 70", "many"), ("blocks of 16", "many")}  # half of the time of all others


def stepped(plan, shape, *args, columns, options):
    g = torch.Generator().manual_seed(0)
    case = Case(*shape, g, "cpu", columns=columns, **options)
    launches = plan(case.operands(2), case.update, *args)
    for done in range(2):
        launches(case.update, done=done)
    return [*case.Xs, *(case.Ms or []), *(case.Ps or [])]


def long_polar(parts, lr):
    g = torch.Generator().manual_seed(0)
    X = random_stiefel(40, 33, batch=(2,), generator=g, dtype=torch.float32)
    D = randn(2, 40, 33, generator=g, dtype=torch.float32)
    if parts:
        return [dispatch.polar_step_by_parts(X, D, lr, tangent=True)[0]]
    return [dispatch.retract(X, D - X @ D.mT @ X, D, lr)]


def by_factors(natural):
    g = torch.Generator().manual_seed(0)
    X = random_stiefel(40, 33, batch=(2,), generator=g, dtype=torch.float32)
    A, B = (randn(2, n, 5, generator=g, dtype=torch.float32) for n in (40, 33))
    if not natural:
        Factored(X, 5, has_v=False, has_ax=False)(X, A, B, 0.05, None, None, 0, 1e-5)
        return [X]
    H, numbers = torch.eye(33).repeat(2, 1, 1), torch.zeros(2, 2, 1, 1)
    memory = H, numbers, torch.full((2, 33, 1), 33**-0.5)
    made = Natural(X, 5)(X, A, B, memory)
    return [t.clone() for t in (*made, *memory)]


def recurrent():
    g = torch.Generator().manual_seed(0)
    u, h = randn(6, 3, 9, generator=g, dtype=torch.float32), torch.zeros(3, 9)
    W = random_stiefel(9, 9, generator=g, dtype=torch.float32).requires_grad_()
    bias = torch.full((9,), -0.1, requires_grad=True)
    states = recurrence_by_hand(u, h, W, bias)
    states.square().sum().backward()
    return [states.detach(), W.grad, bias.grad]


def cases():
    table = {}
    for place, (name, (plan, shape, *args)) in enumerate(PLANS.items()):
        for n, (kind, options) in enumerate(OPTIONS.items()):
            if (name, kind) in LEFT_OUT:
                continue
            columns = (place + n) % 2 == 1  # each kind and each plan in both layouts
            table[f"{name}, {kind}, {'columns' if columns else 'rows'}"] = (
                lambda p=plan, s=shape, a=args, c=columns, o=options: stepped(
                    p, s, *a, columns=c, options=o
                )
            )
    for parts in (False, True):
        for lr in (1e-3, 0.2):
            table[f"long polar, parts={parts}, lr={lr}"] = lambda p=parts, r=lr: long_polar(p, r)
    table |= {f"by factors, natural={n}": lambda n=n: by_factors(n) for n in (False, True)}
    return {**table, "recurrence": recurrent}


def processor():
    """The hash of what the interpreter computes with."""
    x = np.random.default_rng(0).standard_normal((33, 33), dtype=np.float32)
    made = [x @ x, np.exp(x), np.sin(x), np.sqrt(np.abs(x)), x.sum(0), x @ x.T]
    return digest([torch.from_numpy(np.ascontiguousarray(a)) for a in made])


@pytest.mark.skipif(not INTERPRETED, reason="the bits are those of the interpreter")
@pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero) encountered")
def test_interpreted_kernels_give_the_bits_that_were_recorded():
    golden, table = json.loads(FILE.read_text()), cases()
    assert set(golden["digests"]) == set(table)
    if processor() != golden["processor"]:
        pytest.skip("another processor: its products round otherwise")
    changed = [name for name, make in table.items() if digest(make()) != golden["digests"][name]]
    assert not changed


if __name__ == "__main__":
    found = {name: digest(make()) for name, make in cases().items()}
    golden = {"processor": processor(), "digests": found}
    FILE.write_text(json.dumps(golden, indent=1) + "\n")
