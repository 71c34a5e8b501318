"""`rotate_given_pairs_` against the reference `rotate_pairs`."""

import pytest
import torch

from helpers import assert_close, randn, random_stiefel
from skewflow.kernels import rotate_pairs
from skewflow.kernels.rotate_pairs.given_cpu import rotate_given_pairs_

SHAPES = [(2, 1), (4, 4), (5, 3), (33, 17), (64, 300)]


@pytest.fixture(params=[torch.float64, torch.float32], ids=str)
def dtype(request):
    return request.param


def matrix(d, k, layout, generator, dtype):
    A = randn(d, k, generator=generator, dtype=dtype)
    if layout == "columns":
        return A.mT.contiguous().mT
    return A.repeat_interleave(2, dim=1)[:, ::2] if layout == "strided" else A


@pytest.mark.parametrize("layout", ["rows", "columns", "strided"])
@pytest.mark.parametrize("retraction", ["exp", "cayley"])
def test_given_pairs_turn_in_place_as_the_reference_does(layout, retraction, dtype, generator):
    for d, k in SHAPES:
        X, M = (matrix(d, k, layout, generator, dtype) for _ in range(2))
        pairs = torch.randperm(d, generator=generator)[: d // 2 * 2].view(-1, 2)
        theta = randn(len(pairs), generator=generator)
        expected = [rotate_pairs(A, pairs, theta.to(dtype), retraction) for A in (X, M)]
        places = X.data_ptr(), M.data_ptr()
        rotate_given_pairs_(X, M, pairs, theta, retraction)
        assert_close(f"X, {d} x {k}", expected[0], X, dtype)
        assert_close(f"M, {d} x {k}", expected[1], M, dtype)
        assert (X.data_ptr(), M.data_ptr()) == places


def test_a_write_is_seen_by_autograd_and_no_pairs_turn_nothing(generator, dtype):
    X = randn(6, 3, generator=generator, dtype=dtype)
    before, version = X.clone(), X._version
    rotate_given_pairs_(X, None, torch.empty(0, 2, dtype=torch.int64), torch.empty(0).double())
    assert torch.equal(X, before) and X._version > version


@pytest.mark.parametrize("retraction", ["exp", "cayley"])
def test_an_infinite_angle_turns_as_the_largest_one(retraction, generator, dtype):
    X = random_stiefel(4, 3, generator=generator, dtype=dtype)
    theta = torch.tensor([torch.inf, -1e300], dtype=torch.float64)
    rotate_given_pairs_(X, None, torch.tensor([[0, 1], [2, 3]]), theta, retraction)
    assert_close("gram", torch.eye(3), X.mT @ X, dtype)
