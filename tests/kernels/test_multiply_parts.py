"""Products of float16 parts: as exact as float32, for factors of any size and layout."""

import pytest
import torch

from helpers import assert_close, randn, random_stiefel
from skewflow.kernels import multiply_parts as package
from skewflow.kernels.multiply_parts.reference import multiply_parts, parts_of, unit_for

pytest.importorskip("triton")

from skewflow.kernels._runtime._launch_triton import shared_memory
from skewflow.kernels.multiply_parts import _triton as fused

pytestmark = [
    pytest.mark.usefixtures("poisoned_memory"),
    # numpy, which the interpreter computes with, tells of what the kernels mean to do.
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered"),
]

SHAPES = [
    (1, 1, 1, 1),
    (3, 3, 5, 4),
    (2, 17, 33, 20),
    (1, 100, 7, 7),
    (3, 7, 100, 7),
    (1, 70, 70, 130),
]
"""(n, a, b, c): tiny, odd, thin, and more than one tile."""

TILES = [fused.Tiles(64, 64, 32, 4, 2), fused.Tiles(128, 64, 64, 4, 2)]


def split(A, bound, device, *, transposed=False):
    """The parts, stored as they are or transposed."""
    n, a, b = A.shape
    bound = bound if isinstance(bound, float) else bound.to(device)
    A, units = A.to(device), torch.empty(n, device=device)
    if transposed:
        parts = fused.empty_parts(n, b, a, units)
        fused.split_of(parts, A.mT, bound).once()
        return parts.mT
    parts = fused.empty_parts(n, a, b, units)
    fused.split_of(parts, A, bound).once()
    return parts


def norm(A):
    return torch.linalg.vector_norm(A, dim=(-2, -1), dtype=torch.float64)


def whole(parts):
    """What the parts stand for, in float64."""
    both = parts.values.double().sum(1)[:, : parts.a, : parts.b]
    return (both * parts.units.double()[:, None, None]).cpu()


@pytest.mark.parametrize("size", [1.0, 1e-9, 3e15, 0.0, 1e-30])
def test_the_parts_of_a_number_are_all_of_it_but_its_last_bits(size, generator):
    x = size * randn(300, generator=generator, dtype=torch.float32)
    x[:100] *= 1e-5
    size = torch.linalg.vector_norm(x, dtype=torch.float64)
    unit = unit_for(size)
    high, low = parts_of(x, unit)
    error = (x.double() - unit.double() * (high.double() + low.double())).abs()
    assert (error <= torch.maximum(2.0**-23 * x.double().abs(), 2.0**-25 * unit.double())).all()
    assert torch.frexp(unit)[0] == 0.5
    assert not size or 2**13 <= size / unit <= 2**14


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_are_split_as_in_the_reference_with_zeros_around(transposed, generator, device):
    A = randn(4, 9, 70, generator=generator, dtype=torch.float32)
    A *= torch.tensor([1.0, 1e-12, 1e17, 1e-37])[:, None, None]
    for bound in (norm(A), 1e18):
        parts = split(A, bound, device, transposed=transposed)
        bounds = bound if isinstance(bound, torch.Tensor) else torch.full((4,), bound)
        units = unit_for(bounds)
        assert torch.equal(parts.units.cpu(), units)
        expected = torch.stack(parts_of(A, units[:, None, None]), 1)
        values = parts.values.cpu()
        assert torch.equal(values[:, :, :9, :70], expected)
        assert not values[:, :, 9:].any() and not values[..., 70:].any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_makes_all_of_its_product_nan(bad, generator, device):
    A = randn(2, 9, 9, generator=generator, dtype=torch.float32)
    B = A.clone()
    A[1, 3, 4] = bad
    left, right = split(A, norm(A), device), split(B, norm(B), device)
    out = torch.empty(2, 9, 9, device=device)
    fused.product_of(out, None, left, right).once()
    assert_close("the other", B[0].double() @ B[0].double(), out[0].cpu(), torch.float32)
    assert out[1].isnan().all()


@pytest.mark.parametrize("tiles", TILES, ids=str)
@pytest.mark.parametrize("left, right", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_the_reference(shape, left, right, tiles, generator, device):
    n, a, b, c = shape
    A = randn(n, a, b, generator=generator, dtype=torch.float32)
    B = 1e-6 * randn(n, b, c, generator=generator, dtype=torch.float32)
    C = randn(n, c, a, generator=generator, dtype=torch.float32).mT
    B *= torch.tensor([1.0, 1e6, 1e12])[:n, None, None]
    pair = split(A, norm(A), device, transposed=left), split(B, norm(B), device, transposed=right)
    size = (norm(A) * norm(B))[:, None, None]
    for added, alpha, beta in ((None, 1.0, 1.0), (C, -0.5, 1.5)):
        scaled = None if added is None else (added * size).float()
        given = None if added is None else scaled.to(device)
        out = torch.empty(n, a, c, device=device)
        parts = fused.empty_parts(n, a, c, unit_for(4 * size[:, 0, 0]).to(device))
        fused.product_of(out, parts, *pair, given, alpha, beta, tiles=tiles).once()
        expected = multiply_parts(A, B, (norm(A), norm(B)), scaled, alpha, beta) / size
        assert_close("out", expected, out.cpu() / size, torch.float32, factor=0.1)
        exact = alpha * (A.double() @ B.double()) / size
        exact = exact if added is None else exact + beta * scaled / size
        assert_close("exact", exact, out.cpu() / size, torch.float32, factor=0.1)
        assert_close("parts", out.double().cpu() / size, whole(parts) / size, factor=1e6)
        values = parts.values.cpu()
        assert not values[:, :, a:].any() and not values[..., c:].any()


@pytest.mark.parametrize("tiles", TILES, ids=str)
@pytest.mark.parametrize("d, k", [(1, 1), (5, 3), (40, 33), (100, 7), (70, 130)])
def test_symmetric_products_are_computed_once_and_mirrored(d, k, tiles, generator, device):
    A = randn(3, d, k, generator=generator, dtype=torch.float32) / d**0.5
    parts = split(A, norm(A), device)
    alpha, live = torch.tensor([1.0, 2.0, 0.5], device=device), torch.tensor([True, False, True])
    out = torch.full((3, k, k), 7.0, device=device)
    again = fused.empty_parts(3, k, k, torch.full((3,), 2.0**-9, device=device))
    fused.product_of(
        out, again, parts.mT, parts, None, alpha,
        live=live.to(device), symmetric=True, minus_identity=True, tiles=tiles,
    ).once()  # fmt: skip
    I = torch.eye(k, dtype=torch.float64)
    expected = alpha.cpu()[:, None, None] * (A.double().mT @ A.double()) - I
    assert torch.equal(out, out.mT)
    assert (out[1] == 7).all()
    assert_close("out", expected[live], out.cpu()[live], torch.float32, factor=0.1)
    # The parts leave out 2^-25 of their unit.
    assert_close("parts", out.double().cpu()[live], whole(again)[live], factor=2e5)
    assert not again.values[live][:, :, k:].any() and not again.values[live][..., k:].any()


def test_parts_that_are_not_live_stay(generator, device):
    A = randn(2, 5, 5, generator=generator, dtype=torch.float32)
    parts = split(A, norm(A), device)
    before = parts.values.clone(), parts.units.clone()
    live = torch.tensor([False, True], device=device)
    fused.split_of(parts, 100 * A.to(device), 1e9, live).once()
    assert torch.equal(parts.values[0], before[0][0]) and parts.units[0] == before[1][0]
    assert not torch.equal(parts.values[1], before[0][1]) and parts.units[1] != before[1][1]


def test_the_gram_matrix_of_a_point_is_known_to_float32(generator, device):
    X = random_stiefel(300, 200, batch=(1,), generator=generator, dtype=torch.float32)
    parts, out = split(X, 2.0, device), torch.empty(1, 200, 200, device=device)
    fused.product_of(out, None, parts.mT, parts, symmetric=True, minus_identity=True).once()
    exact = X.double().mT @ X.double() - torch.eye(200)
    error = out.double().cpu() - exact
    assert torch.linalg.matrix_norm(error) / 200**0.5 < 3e-7
    assert error.diagonal(dim1=-2, dim2=-1).abs().max() < 5e-7


def test_two_runs_give_the_same_bits(generator, device):
    A = randn(2, 90, 150, generator=generator, dtype=torch.float32)
    parts = split(A, norm(A), device)
    outs = [torch.empty(2, 150, 150, device=device) for _ in range(2)]
    for out in outs:
        fused.product_of(out, None, parts.mT, parts, symmetric=True, tiles=TILES[0]).once()
    assert torch.equal(*outs)


def test_small_matrices_float64_and_the_cpu_keep_torchs_products():
    assert not package.is_faster(torch.zeros(1, 600, 600))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_large_float32_matrices_on_cuda_multiply_parts():
    enough = shared_memory(torch.device("cuda", 0)) >= package.SHARED
    for shape, dtype, faster in (
        ((2, 600, 512), torch.float32, enough),
        ((16, 100, 96), torch.float32, enough),
        ((15, 100, 96), torch.float32, False),
        ((200, 100, 95), torch.float32, False),
        ((1, 512, 448), torch.float32, False),
        ((2, 600, 512), torch.float64, False),
    ):
        assert package.is_faster(torch.zeros(shape, dtype=dtype, device="cuda:0")) == faster


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("shape", [(1, 2000, 2000), (1, 1100, 515), (3, 700, 600)], ids=str)
def test_large_products_are_as_exact_as_float32(shape, generator, device):
    n, d, k = shape
    X = random_stiefel(d, k, batch=(n,), generator=generator, dtype=torch.float32)
    D = randn(*shape, generator=generator, dtype=torch.float32)
    X_parts, D_parts = split(X, 2.0, device), split(D, norm(D), device)
    X, D = X.to(device), D.to(device)
    S, P = (torch.empty(n, k, k, device=device) for _ in range(2))
    fused.product_of(S, None, X_parts.mT, D_parts).once()
    fused.product_of(P, None, X_parts.mT, X_parts, symmetric=True, minus_identity=True).once()
    exact = X.double().mT @ D.double()
    assert torch.linalg.matrix_norm(S - exact).max() < 5e-7 * torch.linalg.matrix_norm(exact).max()
    error = P.double() - (X.double().mT @ X.double() - torch.eye(k, device=device))
    assert torch.linalg.matrix_norm(error).max() / k**0.5 < 4e-7
