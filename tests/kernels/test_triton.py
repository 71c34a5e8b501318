"""The CUDA kernels against the references: interpreted on a CPU, compiled where there is a GPU."""

from dataclasses import replace

import pytest
import torch

from helpers import assert_close, randn
from skewflow.kernels.permutation.reference import matching_at, order_at
from skewflow.kernels.rotate_blocks.reference import step_blocks
from skewflow.kernels.rotate_pairs.reference import step_pairs

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from skewflow.kernels._runtime import _launch_triton  # noqa: E402
from skewflow.kernels._runtime._launch_triton import Launch  # noqa: E402
from skewflow.kernels.permutation import _triton as permutation  # noqa: E402
from skewflow.kernels.rotate_blocks._launches_triton import plan_blocks  # noqa: E402
from skewflow.kernels.rotate_pairs._triton import plan_pairs  # noqa: E402
from skewflow.kernels.rotate_pairs._turn_triton import turn  # noqa: E402
from skewflow.kernels.row_moments.reference import row_moments  # noqa: E402
from triton_cases import LATE, SEED, Case  # noqa: E402

pytestmark = pytest.mark.usefixtures("poisoned_memory")


@triton.jit
def write_order(
    order_ptr, back_ptr, step_ptr, stream_of_it, seed, d, BITS: tl.constexpr, ROUNDS: tl.constexpr
):
    x = tl.arange(0, 128)
    step = tl.load(step_ptr)
    key = permutation.make_key(seed.to(tl.int64), stream_of_it.to(tl.int64), step)
    order = permutation.permute(tl.where(x < d, x, 0), d, key, BITS, ROUNDS)
    back = permutation.permute(order, d, key, BITS, ROUNDS, INVERSE=True)
    tl.store(order_ptr + x, order, mask=x < d)
    tl.store(back_ptr + x, back, mask=x < d)


@pytest.mark.parametrize("step", [0, LATE])
@pytest.mark.parametrize("d", [2, 3, 5, 63, 64, 100])
def test_the_permutation_is_the_references_bit_by_bit(d, step, device):
    step = torch.tensor(step, device=device)
    order, back = (torch.empty(d, dtype=torch.int32, device=device) for _ in range(2))
    options = permutation.permutation_options(d)
    write_order[(1,)](
        order, back, step, 7, SEED, d, BITS=options["BITS"], ROUNDS=options["NUM_ROUNDS"]
    )
    assert torch.equal(order.long(), order_at(d, SEED, 7, step))
    assert torch.equal(back.long(), torch.arange(d, device=device))


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("d", [2, 3, 5, 100])
def test_the_partners_are_the_matching_of_the_reference(d, independent, device):
    for step in (torch.tensor(s, device=device) for s in (1, LATE)):
        partners = torch.empty(2, d, dtype=torch.int32, device=device)
        permutation.match_columns[(2,)](
            partners_ptr=partners,
            table_ptr=None,
            replayed_ptr=step - 1,
            first_stream=7,
            seed=SEED,
            done=1,
            n=2,
            d=d,
            num_tiles=1,
            **permutation.permutation_options(d),
            INDEPENDENT=independent,
            BLOCK_D=128,
        )
        for b in range(2):
            expected = torch.arange(d, device=device)
            pairs, _ = matching_at(d, SEED, 7 + b, step, independent=independent)
            i, j = pairs.unbind(-1)
            expected[i], expected[j] = j, i
            assert torch.equal(partners[b].long(), expected)


@triton.jit
def write_turns(theta_ptr, turns_ptr, flags_ptr, CAYLEY: tl.constexpr):
    x = tl.arange(0, 1024)
    lost, sine = turn(tl.load(theta_ptr + x), x >= 0, flags_ptr, 0, CAYLEY)
    tl.store(turns_ptr + x, lost)
    tl.store(turns_ptr + 1024 + x, sine)


@pytest.mark.parametrize("cayley", [False, True], ids=["exp", "cayley"])
def test_turns_keep_lengths_to_the_last_place(cayley, device):
    theta = torch.linspace(-4, 4, 1024, device=device)
    turns = torch.empty(2, 1024, device=device)
    flags = torch.zeros(2, dtype=torch.int32, device=device)
    write_turns[(1,)](theta, turns, flags, CAYLEY=cayley)
    lost, sine = turns.cpu().double()
    expected = 2 * (theta.cpu().double() / 2).atan() if cayley else theta.cpu().double()
    assert_close("lost", expected.cos() - 1, lost, torch.float32)
    assert_close("sine", expected.sin(), sine, torch.float32)
    # What is left is the rounding of the two numbers themselves.
    assert ((1 + lost) ** 2 + sine**2 - 1).abs().max() < 1.5 * 2**-23


OPTIONS = [
    {},
    {"num": 2, "n": 2, "momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "maximize": True, "retraction": "cayley"},
    {"num": 3, "grad": torch.bfloat16, "low": torch.bfloat16, "momentum": 0.5},
    {"independent": True},
]
IDS = ["plain", "many", "nesterov", "low", "independent"]


EACH = [
    pytest.param(options, columns, (n + columns) % 2, id=f"{name}-{layout}")
    for n, (options, name) in enumerate(zip(OPTIONS, IDS, strict=True))
    for columns, layout in enumerate(["rows", "columns"])
]
"""Each kind of step in both layouts, and each kind and each layout in both shapes of a test."""


@pytest.mark.parametrize("options, columns, shape", EACH)
def test_pairs_step_as_the_reference(options, columns, shape, generator, device):
    d, k = [(5, 3), (100, 5)][shape]
    case = Case(d, k, generator, device, columns=columns, **options)
    case.check(plan_pairs, step_pairs)


@pytest.mark.parametrize(
    "d, k", [(2, 1), (3, 1), (2, 63), (3, 100), (63, 63), (1000, 1), (1000, 3), (3, 1000)]
)
def test_pairs_of_odd_shapes(d, k, generator, device):
    for columns in (False, True):
        case = Case(d, k, generator, device, columns=columns, momentum=0.9)
        case.check(plan_pairs, step_pairs)


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_pairs_in_double_precision(columns, generator, device):
    options = {"columns": columns, "dtype": torch.float64, "momentum": 0.9}
    case = Case(7, 5, generator, device, **options)
    case.check(plan_pairs, step_pairs)


@pytest.mark.parametrize("options", OPTIONS[1:], ids=IDS[1:])
def test_pairs_of_long_rows_go_twice_over_them(options, generator, device):
    case = Case(5, 63, generator, device, **options)
    case.check(plan_pairs, step_pairs, block_k=16, pairs=2)


@pytest.mark.parametrize("options", OPTIONS[1:], ids=IDS[1:])
def test_pairs_of_large_columns_are_summed_in_chunks(options, generator, device):
    case = Case(5, 63, generator, device, columns=True, **options)
    case.check(plan_pairs, step_pairs, chunks=3, rows=4)


@pytest.mark.parametrize("options, columns, shape", EACH)
def test_blocks_step_as_the_reference(options, columns, shape, generator, device):
    d, k, s = [(20, 5, 3), (63, 5, 20)][shape]
    case = Case(d, k, generator, device, columns=columns, **options)
    case.check(plan_blocks, step_blocks, s)


@pytest.mark.parametrize(
    "d, k, s",
    [(2, 1, 2), (3, 3, 2), (100, 63, 40), (63, 63, 63), (100, 3, 33), (64, 2, 64), (1000, 3, 63)],
)
def test_blocks_of_odd_shapes(d, k, s, generator, device):
    case = Case(d, k, generator, device, momentum=0.9)
    case.check(plan_blocks, step_blocks, s, splits=2, apply_splits=3)


@pytest.mark.parametrize("retraction", ["exp", "cayley"])
def test_blocks_turn_far(retraction, generator, device):
    case = Case(20, 7, generator, device, retraction=retraction)
    case.update = replace(case.update, lr=3.0)  # angles of several turns
    case.check(plan_blocks, step_blocks, 20, steps=(0,))


STEPS = [(plan_pairs, step_pairs, ()), (plan_blocks, step_blocks, (3,))]


@pytest.mark.parametrize("retraction", ["exp", "cayley"])
@pytest.mark.parametrize("lr", [1e3, 1e6, 1e12])
def test_an_absurd_angle_turns_by_some_angle(lr, retraction, generator, device):
    case = Case(20, 7, generator, device, retraction=retraction)
    case.update = replace(case.update, lr=lr)
    plan_blocks(case.operands(), case.update, 20)(case.update)
    X = case.Xs[0].cpu()
    assert_close("X^T X", torch.eye(7)[None], X.mT @ X, torch.float32)
    assert not case.flags.any()


class Compiled:
    """A kernel whose compiled form writes down what it is launched with."""

    function, packed_metadata = "function", "metadata"

    def __init__(self, *arg_names):
        self.arg_names, self.launched = arg_names, []

    def __getitem__(self, grid):
        return lambda **given: self

    def run(self, *values):
        self.launched.append(values)


def test_a_launch_repeats_its_addresses_with_new_numbers():
    X, G, H = torch.zeros(3), torch.zeros(3), torch.zeros(3)
    reads, writes = Compiled("X_ptr", "G_ptr", "scale"), Compiled("scale", "X_ptr")
    given = {"X_ptr": X, "G_ptr": G, "n": 3}
    first, second = (Launch(kernel, 7, given) for kernel in (reads, writes))
    for launch in (first, second):
        launch({"scale": 1.0, "done": 0}, stream=5)
        launch({"scale": 2.0, "done": 1}, stream=5)
        launch.move("G_ptr", H)
        launch({"scale": 3.0, "done": 2}, stream=6)
    head = ("function", "metadata", None, None, None)
    x, g, h = (t.data_ptr() for t in (X, G, H))
    assert reads.launched == [
        (7, 1, 1, 5, *head, x, g, 2.0),
        (7, 1, 1, 6, *head, x, h, 3.0),
    ]
    assert writes.launched == [(7, 1, 1, 5, *head, 2.0, x), (7, 1, 1, 6, *head, 3.0, x)]


def test_a_single_launch_of_a_known_kernel_runs_on_the_current_stream(monkeypatch):
    monkeypatch.setattr(_launch_triton, "stream_of", lambda device: 9)
    kernel, X = Compiled("X_ptr"), torch.zeros(3)
    for _ in range(2):  # Triton itself launches what it compiles
        Launch(kernel, 7, {"X_ptr": X}).once()
    head = ("function", "metadata", None, None, None)
    assert kernel.launched == [(7, 1, 1, 9, *head, X.data_ptr())]


@pytest.mark.parametrize("num", [1, 3])
@pytest.mark.parametrize("plan, reference, args", STEPS, ids=["pairs", "blocks"])
def test_gradients_may_move(plan, reference, args, num, generator, device):
    case = Case(9, 5, generator, device, num=num, momentum=0.9)
    launches = plan(case.operands(), case.update, *args)
    launches(case.update)
    case.Gs = [randn(*G.shape, generator=generator).to(G) for G in case.Gs]
    done = torch.tensor(1, device=device)
    expected = [
        reference(X, G, M, done, replace(case.update, stream=stream), *args)
        for X, G, M, stream in zip(case.Xs, case.Gs, case.Ms, case.streams, strict=True)
    ]
    assert launches.move(case.Gs)
    launches(case.update, done=1)
    for (X, M), ours, momentum in zip(expected, case.Xs, case.Ms, strict=True):
        assert_close("X", X.cpu(), ours.cpu(), torch.float32)
        assert_close("M", M.cpu(), momentum.cpu(), torch.float32)
    shifted = [torch.empty(G.numel() + 1, device=device)[1:].view(G.shape) for G in case.Gs]
    assert not launches.move(shifted)  # compiled for wide loads


@pytest.mark.parametrize("retraction", ["exp", "cayley"])
def test_many_steps_stay_on_the_manifold(retraction, generator, device):
    case = Case(6, 4, generator, device, retraction=retraction, momentum=0.9)
    plans = (
        plan_pairs(case.operands(), case.update),
        plan_blocks(case.operands(), case.update, 3),
    )
    for step in range(5):
        for plan in plans:
            plan(case.update, done=step)
    X = case.Xs[0].cpu()
    assert_close("X^T X", torch.eye(4)[None], X.mT @ X, torch.float32, factor=0.2)


def test_two_runs_give_the_same_bits(device):
    runs = []
    for _ in range(2):
        case = Case(12, 33, torch.Generator().manual_seed(1), device, num=2, momentum=0.9)
        plan_pairs(case.operands(4), case.update)(case.update)
        plan_blocks(case.operands(4), case.update, 5, splits=2)(case.update)
        runs.append(case.Xs + case.Ms)
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_the_numbers_of_a_launch_may_change(generator, device):
    case = Case(8, 5, generator, device, momentum=0.5)
    launch = plan_pairs(case.operands(), case.update)
    for done, lr, momentum in ((0, 0.01, 0.5), (16, 0.02, 0.5), (1, 0.001, 0.9)):
        update = replace(case.update, lr=lr, momentum=momentum)
        X, M = step_pairs(
            case.Xs[0], case.Gs[0], case.Ms[0], torch.tensor(done, device=device),
            replace(update, stream=5),
        )  # fmt: skip
        launch(update, done)
        assert_close("X", X.cpu(), case.Xs[0].cpu(), torch.float32)
        assert_close("M", M.cpu(), case.Ms[0].cpu(), torch.float32)


PLANS = [(plan_pairs, ()), (plan_blocks, (5,))]
PATHS = [
    (plan_pairs, (), False, {}),
    (plan_pairs, (), True, {}),
    (plan_pairs, (), True, {"chunks": 2}),
    (plan_blocks, (5,), False, {}),
    (plan_blocks, (5,), True, {}),
]
BAD = [torch.nan, torch.inf, -torch.inf]
PATH_IDS = ["pairs-rows", "pairs-columns", "pairs-chunks", "blocks-rows", "blocks-columns"]


@pytest.mark.parametrize("plan, args, columns, tuning", PATHS, ids=PATH_IDS)
def test_planes_are_divided_by_the_moments_of_their_rows(
    plan, args, columns, tuning, generator, device
):
    case = Case(11, 4, generator, device, num=2, n=2, columns=columns, momentum=0.5)
    moments = randn(2, 2, 11, generator=generator).exp().float().to(device)
    reference = step_pairs if plan is plan_pairs else step_blocks
    time = torch.tensor(3, device=device)
    expected = [
        reference(X, G, M, time, replace(case.update, stream=stream), *args, w)[0]
        for X, G, M, stream, w in zip(case.Xs, case.Gs, case.Ms, case.streams, moments, strict=True)
    ]
    plan(case.operands(moments=moments), case.update, *args, **tuning)(case.update, done=3)
    for X, Y in zip(expected, case.Xs, strict=True):
        assert_close("X", X.cpu(), Y.cpu(), torch.float32)


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("d, k, dtype", [(9, 5, torch.float32), (3, 600, torch.float64)])
def test_moments_of_the_rows_are_the_references(d, k, dtype, columns, generator, device):
    case = Case(d, k, generator, device, num=2, n=2, columns=columns, dtype=dtype)
    case.Gs[0][1, 2, 3] = torch.nan
    update = replace(case.update, momentum=0.9, beta2=0.99, eps=1e-3)
    squares = randn(2, 2, d, generator=generator).square().to(device, dtype)
    ours, moments = squares.clone(), torch.empty_like(squares)
    case.Ms, case.update = None, update
    skipped = torch.tensor([0, 3], device=device)
    operands = case.operands(4, moments=moments, squares=ours, since=2, skipped=skipped)
    launches = plan_pairs(operands, update)
    first, second = (launch._arguments["table_ptr"] for launch in launches.launches)
    assert first is second
    launches(update, done=3)
    for v, G, new, w, skips in zip(squares, case.Gs, ours, moments, (0, 3), strict=True):
        expected = row_moments(v, G, 5 - skips, update)
        assert_close("squares", v.cpu(), new.cpu(), dtype)
        assert_close("moments", expected.cpu(), w.cpu(), dtype)


def test_the_least_moment_is_not_zero(generator, device):
    case = Case(5, 4, generator, device)
    update = replace(case.update, momentum=0.9, beta2=0.99, eps=1e-30)
    squares, case.Gs = torch.zeros(1, 1, 5, device=device), [torch.zeros_like(case.Gs[0])]
    moments, before = torch.empty_like(squares), case.Xs[0].clone()
    plan_pairs(case.operands(0, moments=moments, squares=squares), update)(update)
    assert moments.min() > 0 and torch.equal(case.Xs[0], before)
    assert row_moments(squares[0], case.Gs[0], 0, update).min() > 0


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("plan, args", PLANS, ids=["pairs", "blocks"])
def test_parameters_that_are_not_live_stay_as_they_are(plan, args, columns, generator, device):
    case = Case(9, 4, generator, device, num=3, columns=columns, momentum=0.9)
    case.Gs[1].fill_(torch.nan)
    before = [t.clone() for t in (*case.Xs, *case.Ms)]
    live = torch.tensor([1, 0, 1], dtype=torch.int32, device=device)
    plan(case.operands(live=live), case.update, *args)(case.update)
    changed = [not torch.equal(a, b) for a, b in zip(before, (*case.Xs, *case.Ms), strict=True)]
    assert changed == [True, False, True] * 2


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # the interpreter's NumPy
@pytest.mark.parametrize(
    "plan, args, columns, tuning, bad",
    [(*path, bad) for path, bad in zip(PATHS, [*BAD, *BAD], strict=False)],
    ids=PATH_IDS,
)
def test_a_gradient_that_is_not_finite_is_reported_and_touches_nothing(
    plan, args, columns, tuning, bad, generator, device
):
    case = Case(10, 4, generator, device, num=2, columns=columns, momentum=0.9)
    case.Gs[1][0, 3, 2] = bad
    before, row, momentum = (
        case.Xs[1].clone(),
        case.Xs[1][0, 3].clone(),
        case.Ms[1][0, 3, 2].clone(),
    )
    advanced = 0.9 * case.Ms[1] + case.Gs[1]
    advanced[0, 3, 2] = momentum
    plan(case.operands(), case.update, *args, **tuning)(case.update)
    if device == "cuda":
        torch.cuda.synchronize()
    assert case.flags.tolist() == [1, 0, 1]
    assert torch.equal(case.Xs[1][0, 3], row) and torch.equal(case.Ms[1][0, 3, 2], momentum)
    stayed = (case.Xs[1] == before).all(dim=-1)
    assert stayed.sum() >= 2  # the block of the bad entry, or blocks that one program turns
    assert_close("M", advanced[stayed].cpu(), case.Ms[1][stayed].cpu(), torch.float32)
    for X in case.Xs:
        assert_close("X^T X", torch.eye(4)[None], (X.mT @ X).cpu(), torch.float32)
    assert all(bool(torch.isfinite(M).all()) for M in case.Ms)


def test_what_the_kernels_cannot_do_is_refused(generator, device):
    case = Case(200, 1, generator, device)
    for retraction, largest in (("exp", 128), ("cayley", 64)):
        update = replace(case.update, retraction=retraction)
        with pytest.raises(ValueError, match=f"must be at most {largest} .*'{retraction}': got"):
            plan_blocks(case.operands(), update, largest + 1)
    case.Xs = [X.double() for X in case.Xs]
    with pytest.raises(ValueError, match="needs float32 points: got torch.float64"):
        plan_blocks(case.operands(), case.update, 2)
    case.Xs = case.Gs = [torch.zeros(1, 2, 2**15, device=device).mT]
    with pytest.raises(ValueError, match="storage rows up to 16384 long: got d=32768"):
        plan_pairs(case.operands(), case.update)
