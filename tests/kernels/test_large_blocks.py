"""The CUDA kernels of blocks of more than 64 rows: as `test_triton.py`, and what only they do."""

import math
from dataclasses import replace

import pytest
import torch

from helpers import assert_close, randn
from skewflow.kernels.block_step import has_kernel
from skewflow.kernels.rotate_blocks.reference import step_blocks

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from skewflow.kernels.rotate_blocks._large_exponential_triton import count_terms  # noqa: E402
from skewflow.kernels.rotate_blocks._launches_triton import plan_blocks  # noqa: E402
from triton_cases import Case  # noqa: E402

pytestmark = pytest.mark.usefixtures("poisoned_memory")


@pytest.mark.parametrize(
    "d, s, columns", [(65, 65, False), (182, 91, True), (182, 91, False), (128, 128, True)]
)
def test_large_blocks_step_as_the_reference(d, s, columns, generator, device):
    options = {"momentum": 0.9, "nesterov": True, "maximize": True}
    case = Case(d, 5, generator, device, columns=columns, **options)
    case.check(plan_blocks, step_blocks, s)


@pytest.mark.parametrize(
    "d, k, s, reload",
    [(127, 1, 127, 0), (140, 2, 70, 1), (97, 35, 97, 1), (128, 64, 128, 0), (193, 70, 100, 1)],
)
def test_large_blocks_of_odd_shapes(d, k, s, reload, generator, device):
    case = Case(d, k, generator, device, momentum=0.9)
    case.check(plan_blocks, step_blocks, s, steps=(3,), splits=2, apply_splits=2, reload=reload)


def test_many_large_blocks_in_low_precision(generator, device):
    low = {"grad": torch.bfloat16, "low": torch.bfloat16}
    case = Case(91, 5, generator, device, num=2, n=2, momentum=0.5, columns=True, **low)
    case.check(plan_blocks, step_blocks, 91)


@pytest.mark.parametrize(
    "s, norm", [(65, 1e-5), (91, 0.1), (91, 0.99), (128, 1.01), (91, 300.0), (128, 1000.0)]
)
def test_large_blocks_turn_by_any_angle(s, norm, generator, device):
    case = Case(s, 8, generator, device, momentum=0.5)
    before, G, M = case.Xs[0].double(), case.Gs[0].double(), case.Ms[0].double()
    D = 0.5 * M + G
    update = replace(case.update, lr=norm * 2**0.5 / float((D @ before.mT - before @ D.mT).norm()))
    time, once = torch.tensor(0, device=device), replace(update, stream=case.streams[0])
    expected, turned = step_blocks(before, G, M, time, once, s)
    launches = plan_blocks(case.operands(), update, s)
    launches(update)
    X, terms = case.Xs[0].double(), launches.kept[0].item()
    assert terms == 1 if norm > 1 else 2 <= terms <= 14
    # An angle of many turns is known to its own rounding only.
    factor = 0.05 * max(1, norm / 10)
    assert_close("X", expected.cpu(), X.cpu(), torch.float32, factor=factor)
    # A wrong angle moves the end of a column by its length, which is 1 for X but not for M.
    length = turned.norm(dim=-2).max().cpu()
    M = case.Ms[0].cpu() / length
    assert_close("M", turned.cpu() / length, M, torch.float32, factor=factor)
    assert_close("X^T X", (before.mT @ before).cpu(), (X.mT @ X).cpu(), torch.float32, factor=0.05)


def test_an_absurd_angle_of_large_blocks_turns_by_some_angle(generator, device):
    case = Case(66, 4, generator, device)
    update = replace(case.update, lr=1e10)  # no digit of the angle is known
    plan_blocks(case.operands(), update, 66)(update)
    X = case.Xs[0]
    assert_close("X^T X", torch.eye(4)[None], (X.mT @ X).cpu(), torch.float32)
    assert case.flags.tolist() == [0, 0]


@triton.jit
def write_terms(norm_ptr, terms_ptr):
    pid = tl.program_id(0)
    tl.store(terms_ptr + pid, count_terms(tl.load(norm_ptr + pid)))


def test_as_many_terms_as_keep_lengths(device):
    norms = torch.logspace(-6, 0, 61, device=device)
    terms = torch.empty(61, dtype=torch.int32, device=device)
    write_terms[(61,)](norms, terms)

    def length(theta, n):
        z = [complex(0, theta) ** j / math.factorial(j) for j in range(n + 1)]
        real, imaginary = math.fsum(x.real for x in z), math.fsum(x.imag for x in z)
        return math.hypot(real, imaginary)

    for theta, n in zip(norms.tolist(), terms.tolist(), strict=True):
        assert abs(length(theta, n) - 1) < 2**-34
        assert n == 2 or abs(length(theta, n - 2) - 1) > 2**-36  # and no more than that
    assert terms.max() == 14


def test_large_blocks_are_divided_by_the_moments_of_their_rows(generator, device):
    case = Case(142, 4, generator, device, num=2)
    moments = randn(2, 1, 142, generator=generator).exp().float().to(device)
    time = torch.tensor(3, device=device)
    expected = [
        step_blocks(X, G, None, time, replace(case.update, stream=stream), 71, w)[0]
        for X, G, stream, w in zip(case.Xs, case.Gs, case.streams, moments, strict=True)
    ]
    plan_blocks(case.operands(moments=moments), case.update, 71)(case.update, done=3)
    for X, Y in zip(expected, case.Xs, strict=True):
        assert_close("X", X.cpu(), Y.cpu(), torch.float32)


def test_parameters_of_large_blocks_that_are_not_live_stay_as_they_are(generator, device):
    case = Case(80, 4, generator, device, num=2, momentum=0.9)
    case.Gs[0].fill_(torch.nan)
    before = [t.clone() for t in (*case.Xs, *case.Ms)]
    live = torch.tensor([0, 1], dtype=torch.int32, device=device)
    plan_blocks(case.operands(live=live), case.update, 80)(case.update)
    changed = [not torch.equal(a, b) for a, b in zip(before, (*case.Xs, *case.Ms), strict=True)]
    assert changed == [False, True] * 2
    assert case.flags.tolist() == [0, 0, 0]


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # the interpreter's NumPy
@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("bad", [torch.nan, 1e38])
def test_a_product_of_large_blocks_that_is_not_finite_turns_nothing(bad, generator, device):
    case = Case(150, 4, generator, device, num=2, momentum=0.9)
    case.Gs[1][0, 3, 2] = bad
    before, advanced = case.Xs[1].clone(), 0.9 * case.Ms[1] + case.Gs[1]
    if not math.isfinite(bad):
        advanced[0, 3, 2] = case.Ms[1][0, 3, 2]
    plan_blocks(case.operands(), case.update, 75)(case.update)
    if device == "cuda":
        torch.cuda.synchronize()
    assert case.flags.tolist() == [1, 0, 1]
    stayed = (case.Xs[1] == before).all(dim=-1)[0]
    assert stayed[3] and stayed.sum() == 75  # the block of row 3, not the other
    assert_close("M", advanced[0, stayed].cpu(), case.Ms[1][0, stayed].cpu(), torch.float32)
    for X in case.Xs:
        assert_close("X^T X", torch.eye(4)[None], (X.mT @ X).cpu(), torch.float32)


def test_two_steps_of_large_blocks_give_the_same_bits(device):
    runs = []
    for _ in range(2):
        case = Case(70, 33, torch.Generator().manual_seed(1), device, momentum=0.9)
        plan_blocks(case.operands(4), case.update, 70, splits=2)(case.update)
        plan_blocks(case.operands(5), case.update, 70, splits=2)(replace(case.update, lr=0.1))
        runs.append(case.Xs + case.Ms)
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_which_blocks_have_kernels():
    class Cuda(torch.Tensor):
        """Says that it is on a GPU."""

        device = torch.device("cuda")

    def on_cuda(dtype=torch.float32):
        return torch.zeros(1, 300, 4, dtype=dtype).as_subclass(Cuda)

    assert [has_kernel(on_cuda(), s, "exp") for s in (2, 64, 65, 128, 129)] == [True] * 4 + [False]
    assert [has_kernel(on_cuda(), s, "cayley") for s in (2, 64, 65)] == [True, True, False]
    doubles = on_cuda(torch.float64)
    assert [has_kernel(doubles, s, "exp") for s in (2, 3, 128)] == [True, False, False]
    assert not has_kernel(torch.zeros(1, 300, 4), 2, "exp")
