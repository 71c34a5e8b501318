"""The references of the kernels, against the exponential of the assembled estimate."""

import pytest
import torch

from cases import gaussian
from helpers import assert_close, randn, random_stiefel, scipy_expm, with_norm
from skewflow.errors import NonFiniteError, NotOnManifoldError, ShapeError
from skewflow.geometry import cayley
from skewflow.kernels import rotate_blocks, rotate_pairs
from skewflow.samplers import HRegular, Sparsified, Uniform
from skewflow.tournaments import EdgeWeights, Partition

SHAPES = [(2, 1), (3, 3), (6, 4), (7, 7), (31, 5)]


def retract(retraction, A):
    return scipy_expm(A) if retraction == "exp" else cayley(A)


@pytest.mark.parametrize("retraction", ["exp", "cayley"])
@pytest.mark.parametrize("d, k", SHAPES)
def test_pairs_rotate_as_the_exponential_of_the_estimate(d, k, retraction, generator):
    X, W = randn(d, k, generator=generator), EdgeWeights.of(gaussian(d, generator))
    t = Uniform(2).sample(W, generator=generator)
    pairs = t.partition.edges()
    Y = rotate_pairs(X, pairs, 0.3 * t.weights * W.entries(pairs), retraction)
    assert_close("Y", retract(retraction, 0.3 * t.dense(W)) @ X, Y)


@pytest.mark.parametrize("retraction", ["exp", "cayley"])
@pytest.mark.parametrize("d, k", SHAPES)
def test_blocks_rotate_as_the_exponential_of_the_estimate(d, k, retraction, generator):
    X, W = randn(d, k, generator=generator), EdgeWeights.of(gaussian(d, generator))
    samplers = [Uniform(min(3, d)), HRegular(2, horvitz_thompson=True), Sparsified(3)]
    for sampler in samplers:
        t = sampler.sample(W, generator=generator)
        Y = rotate_blocks(X, t.partition, t.blocks(W), 0.3, retraction)
        assert_close("Y", retract(retraction, 0.3 * t.dense(W)) @ X, Y)


@pytest.mark.parametrize("s", [2, 5, 16])
def test_a_step_stays_on_the_manifold_and_descends(s, generator):
    X, target = (random_stiefel(16, 9, generator=generator) for _ in range(2))
    for _ in range(20):
        W = EdgeWeights(X, X - target)
        t = Uniform(s).sample(W, generator=generator)
        Y = rotate_blocks(X, t.partition, t.blocks(W), eta=-0.2 / t.weights)
        assert (Y - target).norm() <= (X - target).norm() + 1e-12
        X = Y
    assert_close("X^T X", torch.eye(9), X.mT @ X)


def test_the_reverse_form_is_the_left_form_on_the_transpose(generator):
    X, G = random_stiefel(6, generator=generator), randn(6, 6, generator=generator)
    right, left = EdgeWeights(X, G, side="right"), EdgeWeights(X.mT, G.mT)
    assert_close("omega", -right.dense(), left.dense())
    t = Uniform(3).sample(left, generator=generator)
    Y = rotate_blocks(X.mT, t.partition, t.blocks(left), 0.1).mT
    assert_close("update", X @ scipy_expm(0.1 * t.dense(right)), Y)


def test_rows_outside_every_pair_are_untouched(generator):
    X = randn(5, 3, generator=generator)
    Y = rotate_pairs(X, torch.tensor([[1, 3]]), torch.tensor([0.4], dtype=torch.float64))
    assert torch.equal(Y[[0, 2, 4]], X[[0, 2, 4]])
    empty = torch.empty(0, 2, dtype=torch.int64)
    assert torch.equal(rotate_pairs(X, empty, torch.empty(0, dtype=torch.float64)), X)


def test_the_input_is_not_modified(generator):
    X, W = randn(6, 3, generator=generator), EdgeWeights.of(gaussian(6, generator))
    before = X.clone()
    t = Uniform(2).sample(W, generator=generator)
    rotate_blocks(X, t.partition, t.blocks(W), 0.3)
    rotate_pairs(X, t.partition.edges(), W.entries(t.partition.edges()))
    assert torch.equal(X, before)


def test_gradients_of_the_references_are_right(generator):
    X = randn(4, 2, generator=generator).requires_grad_()
    theta = randn(2, generator=generator).requires_grad_()
    pairs = torch.tensor([[0, 2], [1, 3]])
    assert torch.autograd.gradcheck(lambda X, theta: rotate_pairs(X, pairs, theta), (X, theta))
    upper = randn(1, 3, 3, generator=generator).requires_grad_()
    partition = Partition.of([[0, 1, 2], [3]])
    alone = torch.zeros(1, 1, 1, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda X, U: rotate_blocks(X, partition, (U - U.mT, alone), 0.5), (X, upper)
    )


@pytest.mark.bad_input
def test_bad_blocks_are_refused(generator):
    X = randn(5, 2, generator=generator)
    partition = Partition.of([[0, 1], [2, 3], [4]])
    good = gaussian(2, generator).expand(2, 2, 2), torch.zeros(1, 1, 1, dtype=torch.float64)
    rotate_blocks(X, partition, good, 0.1)
    with pytest.raises(ShapeError, match=r"with the 5 rows.*got shape \(4, 2\)"):
        rotate_blocks(X[:4], partition, good, 0.1)
    with pytest.raises(ShapeError, match=r"got shape \(3, 5, 2\)"):
        rotate_blocks(X.expand(3, 5, 2), partition, good, 0.1)
    for blocks in ((), good[:1], (good[0][:1], good[1])):
        with pytest.raises(ShapeError, match="one .l, s, s. tensor for each block size"):
            rotate_blocks(X, partition, blocks, 0.1)
    with pytest.raises(NotOnManifoldError, match="not skew-symmetric"):
        rotate_blocks(X, partition, (good[0] + 1, good[1]), 0.1)
    with pytest.raises(NonFiniteError, match="`eta` must be finite: got nan"):
        rotate_blocks(X, partition, good, float("nan"))
    with pytest.raises(ValueError, match="`retraction` must be one of 'exp', 'cayley': got 'qr'"):
        rotate_blocks(X, partition, good, 0.1, "qr")


@pytest.mark.parametrize("retraction", ["exp", "cayley"])
@pytest.mark.parametrize("eta", [1e-12, -1.0, 1e300])
@pytest.mark.parametrize("s", [2, 3, 4, 7])
def test_blocks_of_any_finite_size_turn_and_stay_orthogonal(s, eta, retraction, generator):
    sizes = 10.0 ** torch.tensor([-8.0, 0, 4, 8, 12, 16, 100, 200, 300, 308]).double()
    blocks = torch.stack([size * with_norm(gaussian(s, generator), 1.0) for size in sizes])
    l = len(sizes)
    partition = Partition.of(torch.arange(l * s).view(l, s).tolist())
    X = torch.eye(l * s, dtype=torch.float64)
    Y = rotate_blocks(X, partition, (blocks,), eta, retraction)
    R = Y.view(l, s, l, s).diagonal(dim1=0, dim2=2).permute(2, 0, 1)  # the rotations themselves
    assert_close("R^T R", torch.eye(s).expand(l, s, s), R.mT @ R, factor=0.01)
    large = abs(eta) * sizes > 1
    moved = (R - torch.eye(s, dtype=R.dtype)).abs().amax((-2, -1))
    assert (moved[large] > 0.1).all()


@pytest.mark.parametrize("retraction", ["exp", "cayley"])
@pytest.mark.parametrize("s", [2, 3])
def test_autocast_changes_no_bit_of_a_rotation(s, retraction, generator):
    X, G = (randn(6, 4, generator=generator, dtype=torch.float32) for _ in range(2))
    W = EdgeWeights(X, G)
    t = Uniform(s).sample(W, generator=generator)
    pairs, blocks = Uniform(2).sample(W, generator=generator).partition.edges(), t.blocks(W)

    def rotated():
        theta = W.entries(pairs)
        turned = rotate_pairs(X, pairs, theta, retraction)
        return turned, rotate_blocks(X, t.partition, blocks, 0.3, retraction)

    expected = rotated()
    with torch.autocast("cpu", torch.bfloat16):
        result = rotated()
    assert all(torch.equal(a, b) for a, b in zip(expected, result, strict=True))


@pytest.mark.bad_input
def test_bad_pairs_are_refused(generator):
    X = randn(4, 2, generator=generator)
    pairs, theta = torch.tensor([[0, 1], [2, 3]]), torch.zeros(2, dtype=torch.float64)
    rotate_pairs(X, pairs, theta)
    with pytest.raises(ShapeError, match="must be disjoint.*one after the other"):
        rotate_pairs(X, torch.tensor([[0, 1], [1, 3]]), theta)
    with pytest.raises(ShapeError, match="one angle of torch.float64 for each of the 2 pairs"):
        rotate_pairs(X, pairs, theta[:1])
    with pytest.raises(ShapeError, match="of torch.float32"):
        rotate_pairs(X, pairs, theta.float())
    with pytest.raises(ShapeError, match="rows in 0..3: got numbers from 0 to 7"):
        rotate_pairs(X, torch.tensor([[0, 1], [2, 7]]), theta)
    with pytest.raises(NonFiniteError, match="`theta` must be finite"):
        rotate_pairs(X, pairs, theta / 0)
    with pytest.raises(ShapeError, match="one matrix"):
        rotate_pairs(X[None], pairs, theta)
    with pytest.raises(NonFiniteError, match="`X` must be finite"):
        rotate_pairs(X / 0, pairs, theta)
    with pytest.raises(ValueError, match="`retraction` must be one of"):
        rotate_pairs(X, pairs, theta, "qr")
