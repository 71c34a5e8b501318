"""Rounds of rotations: numba and Triton against the plain loop, and that one against matrices."""

import copy

import pytest
import torch

from helpers import assert_close, randn
from skewflow.errors import DtypeError
from skewflow.geometry import givens
from skewflow.kernels.rotate_rounds import cpu, dispatch, reference, rotate_rounds
from skewflow.tournaments import round_robin

SHAPES = [(1, 2, 1), (3, 5, 1), (4, 6, 9), (130, 7, 20), (70, 64, 5)]
"""Vectors, entries, rounds; two of them fill more than one tile of the CPU."""
EVERY = pytest.mark.parametrize("shape", SHAPES, ids=str)
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def arguments(shape, generator, dtype=torch.float64, device="cpu"):
    b, d, n = shape
    family = round_robin(d)
    pairs = torch.stack([family[r % len(family)].edges() for r in range(n)]).int()
    x, theta = randn(b, d, generator=generator), 3 * randn(n, d // 2, generator=generator)
    x, theta = (value.to(device, dtype).requires_grad_() for value in (x, theta))
    return x, pairs.to(device), theta


def assert_same(given, generator, dtype):
    """Results and both gradients are those of the reference."""
    inputs = given[0], given[2]
    expected, actual = reference.rotate_rounds(*given), rotate_rounds(*given)
    up = randn(*expected.shape, generator=generator).to(expected)
    assert_close("y", expected, actual, dtype)
    for name, a, b in zip(
        ("x", "theta"),
        torch.autograd.grad(expected, inputs, up),
        torch.autograd.grad(actual, inputs, up),
        strict=True,
    ):
        assert_close(name, a, b, dtype)


@EVERY
def test_the_plain_loop_is_the_product_of_the_matrices(shape, generator):
    x, pairs, theta = arguments(shape, generator)
    y = x
    for edges, angles in zip(pairs, theta, strict=True):
        for (i, j), angle in zip(edges.tolist(), angles.tolist(), strict=True):
            y = y @ givens(shape[1], i, j, angle, dtype=torch.float64).mT
    assert_close("y", y, reference.rotate_rounds(x, pairs, theta))


@EVERY
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_on_the_cpu_it_is_the_plain_loop(shape, dtype, generator):
    assert_same(arguments(shape, generator, dtype), generator, dtype)


def test_threads_give_the_same_bits(generator, monkeypatch):
    given = arguments((1100, 40, 3), generator, torch.float32)
    ones = torch.ones(1100, 40)
    found = []
    for grain in (1 << 40, 1):
        monkeypatch.setattr("skewflow.kernels._runtime.numba_loops.GRAIN", grain)
        y = rotate_rounds(*given)
        found.append([y, *torch.autograd.grad(y, [given[0], given[2]], ones)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert cpu.TILE * cpu.CHUNKS < 1100  # some sums take several tiles


def test_its_gradients_are_right_once_and_twice(generator):
    x, pairs, theta = arguments((3, 5, 4), generator)
    assert torch.autograd.gradcheck(lambda x, t: rotate_rounds(x, pairs, t), (x, theta))
    assert torch.autograd.gradgradcheck(lambda x, t: rotate_rounds(x, pairs, t), (x, theta))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own
def test_transforms_of_torch_see_the_plain_loop(generator):
    x, pairs, theta = arguments((3, 5, 4), generator)
    jacobian = torch.func.vmap(torch.func.jacfwd(lambda v: rotate_rounds(v[None], pairs, theta)[0]))
    weight = rotate_rounds(torch.eye(5, dtype=x.dtype), pairs, theta).mT
    assert_close("jacobian", weight.expand(3, 5, 5), jacobian(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_turned_in_float32(dtype, generator):
    x, pairs, theta = arguments((9, 6, 40), generator, dtype)
    y = rotate_rounds(x, pairs, theta)
    exact = reference.rotate_rounds(x.float(), pairs, theta.float())
    assert y.dtype == dtype
    assert_close("y", exact.to(dtype), y, dtype, factor=0.5)
    wide = [value.detach().float().requires_grad_() for value in (x, theta)]
    expected = torch.autograd.grad(reference.rotate_rounds(wide[0], pairs, wide[1]).sum(), wide)
    found = torch.autograd.grad(y.sum(), (x, theta))
    for name, a, b in zip(("x", "theta"), expected, found, strict=True):
        assert b.dtype == dtype
        assert_close(name, a, b, dtype, factor=2)  # nine results, each rounded


def test_strided_and_empty_inputs_are_read_as_they_are(generator):
    x, pairs, theta = arguments((4, 6, 3), generator)
    before = copy.deepcopy(x.detach())
    y = rotate_rounds(x.mT.contiguous().mT, pairs, theta)
    assert_close("y", reference.rotate_rounds(x, pairs, theta), y)
    assert torch.equal(x, before)
    empty = x[:0].detach().requires_grad_()
    rotate_rounds(empty, pairs, theta).sum().backward()
    assert empty.grad.shape == (0, 6) and not theta.grad.any()


@pytest.mark.bad_input
def test_vectors_elsewhere_than_the_angles_are_refused(generator):
    x, pairs, theta = arguments((4, 6, 3), generator)
    with pytest.raises(DtypeError, match="on one device: got cpu, meta and cpu"):
        rotate_rounds(x, pairs.to("meta"), theta)


@pytest.fixture
def kernel(monkeypatch):
    """The CUDA kernels, interpreted where there is no GPU; gives the device."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        return "cuda"

    def advance_(y, pairs, c, s):
        from skewflow.kernels.rotate_rounds._triton import advance

        rows = y.contiguous()
        advance(rows, pairs, c, s).once()
        y.copy_(rows)

    def retreat_(g, y, pairs, c, s):
        from skewflow.kernels.rotate_rounds._triton import retreat

        rows = g.contiguous()
        sums, launch = retreat(rows, y.contiguous(), pairs, c, s)
        launch.once()
        g.copy_(rows)
        return sums.sum(0)

    monkeypatch.setattr(dispatch, "_rotate_", advance_)
    monkeypatch.setattr(dispatch, "_rotate_back_", retreat_)
    return "cpu"


@pytest.mark.parametrize("shape", [(1, 2, 1), (5, 6, 9), (7, 11, 3)], ids=str)
def test_on_cuda_it_is_the_plain_loop(shape, generator, kernel, monkeypatch):
    from skewflow.kernels.rotate_rounds import _triton

    monkeypatch.setattr(_triton, "MOST_PAIRS", 2)  # several loads a round, and a last one
    monkeypatch.setattr(_triton, "PROGRAMS", 2)  # each goes through several groups of vectors
    assert_same(arguments(shape, generator, torch.float32, kernel), generator, torch.float32)


@GPU
@pytest.mark.parametrize("shape", [(128, 512, 64), (1000, 1025, 40), (3, 4096, 7)], ids=str)
def test_a_gpu_gives_the_plain_loop_and_the_same_bits_again(shape, generator):
    given = arguments(shape, generator, torch.float32, "cuda")
    inputs = given[0], given[2]
    assert_close("y", reference.rotate_rounds(*given), rotate_rounds(*given), torch.float32)
    up = torch.ones_like(given[0])
    expected = torch.autograd.grad(reference.rotate_rounds(*given), inputs, up)
    first = torch.autograd.grad(rotate_rounds(*given), inputs, up)
    for name, a, b in zip(("x", "theta"), expected, first, strict=True):
        assert_close(name, a, b, torch.float32, factor=5)  # sums of up to 1000 vectors
    for _ in range(3):
        again = torch.autograd.grad(rotate_rounds(*given), inputs, up)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
