import pytest
import torch

from cases import gaussian
from helpers import assert_close, randn, random_stiefel
from skewflow.errors import (
    DtypeError,
    NonFiniteError,
    NotOnManifoldError,
    ShapeError,
    WeightFunctionError,
)
from skewflow.geometry import omega
from skewflow.samplers import Uniform
from skewflow.tournaments import EdgeWeights, Partition, weight_function
from skewflow.tournaments.edge_weights import edge_from_index


@pytest.fixture(params=[(12, 12, "left"), (12, 12, "right"), (12, 5, "left")], ids=str)
def pair(request, generator):
    d, k, side = request.param
    X, G = random_stiefel(d, k, generator=generator), randn(d, k, generator=generator)
    return X, G, side


def test_autocast_changes_no_bit_of_a_view(pair):
    X, G, side = pair
    views = [
        lambda W: W.entries(torch.tensor([[0, 1], [5, 2]])),
        lambda W: W.blocks(Partition.from_order(torch.arange(12), ((4, 3),)))[0],
        lambda W: W.row(4),
        lambda W: W.row_sums("abs"),
        lambda W: W.row_sums("square"),
        lambda W: W.dense(),
    ]
    for view in views:
        expected = view(EdgeWeights(X.float(), G.float(), side))
        with torch.autocast("cpu", torch.bfloat16):
            result = view(EdgeWeights(X.float(), G.float(), side))
        assert result.dtype == expected.dtype and torch.equal(result, expected)


def test_every_view_agrees_with_omega(pair, generator):
    X, G, side = pair
    expected = omega(X, G, side)
    W = EdgeWeights(X, G, side)
    pairs = torch.tensor([[0, 1], [5, 2], [11, 3]])
    assert_close("entries", expected[pairs[:, 0], pairs[:, 1]], W.entries(pairs))
    assert_close("row", expected[4], W.row(4))
    partition = Uniform(5).sample(W, generator=generator).partition
    for b, block in zip(partition.blocks, W.blocks(partition), strict=True):
        assert_close("blocks", expected[b[:, :, None], b[:, None, :]], block)
    for h in ("abs", "square", "sqrt"):
        fresh = EdgeWeights(X, G, side)
        h_omega = weight_function(h)(expected)
        assert_close(f"row sums {h}", h_omega.sum(1), fresh.row_sums(h))
        assert_close(f"norm {h}", h_omega.sum(), fresh.h_norm(h))
    assert_close("row norms", expected.norm(dim=1), W.row_norms())
    assert_close("squared norm", expected.square().sum(), W.squared_norm())
    assert_close("dense", expected, W.dense())


def test_the_diagonal_of_every_view_is_exactly_zero(pair):
    W = EdgeWeights(*pair)
    d = W.d
    assert (W.dense().diagonal() == 0).all()
    fresh = EdgeWeights(*pair)
    assert all(fresh.row(i)[i] == 0 for i in range(d))


def test_row_sums_in_chunks_equal_those_in_one_piece(pair, monkeypatch):
    from skewflow.tournaments import edge_weights

    whole = EdgeWeights(*pair).row_sums("abs")
    monkeypatch.setattr(edge_weights, "CHUNK", 30)
    assert_close("row sums", whole, EdgeWeights(*pair).row_sums("abs"))


def test_the_counter_counts_what_was_evaluated_and_tables_are_free(pair):
    W = EdgeWeights(*pair)
    n = W.d * (W.d - 1) // 2
    assert W.num_edges == n and W.evaluated == 0
    W.entries(torch.tensor([[0, 1], [2, 3]]))
    assert W.evaluated == 2
    W.row(0)
    assert W.evaluated == 2 + W.d - 1
    W.h_norm("abs")
    assert W.evaluated == 2 + W.d - 1 + n
    W.h_norm("abs")  # cached
    W.row_norms()  # no entry is needed
    assert W.evaluated == 2 + W.d - 1 + n
    W.dense()
    assert W.evaluated == 2 + W.d - 1 + 2 * n
    W.entries(torch.tensor([[0, 1]]))
    assert W.evaluated == 2 + W.d - 1 + 2 * n


def test_two_callables_do_not_share_a_cache(generator):
    W = EdgeWeights.of(gaussian(5, generator))
    assert W.h_norm(lambda w: 2 * w.abs()) == pytest.approx(2 * W.h_norm("abs"))
    assert W.h_norm(lambda w: 3 * w.abs()) == pytest.approx(3 * W.h_norm("abs"))


@pytest.mark.parametrize("d", [2, 3, 10, 1000])
def test_edges_are_numbered_row_by_row(d):
    n = d * (d - 1) // 2
    expected = torch.triu_indices(d, d, offset=1).mT
    assert torch.equal(edge_from_index(torch.arange(n), d), expected)


@pytest.mark.parametrize("d", [70_001, 3_000_000])
def test_edge_numbers_are_exact_at_large_d(d):
    n = d * (d - 1) // 2
    index = torch.tensor([0, d - 2, d - 1, n // 3, n - 2, n - 1])
    i, j = edge_from_index(index, d).unbind(-1)
    assert torch.equal(i * (2 * d - i - 1) // 2 + j - i - 1, index)
    assert ((i < j) & (j < d) & (i >= 0)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_and_single_precision_work(dtype, generator):
    X = random_stiefel(10, 4, generator=generator, dtype=dtype)
    G = randn(10, 4, generator=generator, dtype=dtype)
    W = EdgeWeights(X, G)
    t = Uniform(3).sample(W, generator=generator)
    assert t.dense(W).dtype == torch.float32  # halves are computed in float32
    exact = omega(X.double(), G.double())
    assert abs(W.h_norm("square") / exact.square().sum().item() - 1) < 1e-9
    assert_close("dense", exact, W.dense(), torch.float32)


@pytest.mark.bad_input
def test_bad_matrices_are_refused(generator):
    X = random_stiefel(6, 3, generator=generator)
    with pytest.raises(ShapeError, match="shape of `X`: got \\(5, 3\\) and \\(6, 3\\)"):
        EdgeWeights(X, X[:5])
    with pytest.raises(ShapeError, match="d >= k.*d=3, k=6.*mT"):
        EdgeWeights(X.mT, X.mT)
    with pytest.raises(ShapeError, match=r"one matrix \(d, k\).*\(2, 6, 3\).*each matrix"):
        EdgeWeights(X.expand(2, 6, 3), X.expand(2, 6, 3))
    with pytest.raises(NonFiniteError, match="`G` must be finite: 1 of its 18"):
        G = X.clone()
        G[0, 0] = float("nan")
        EdgeWeights(X, G)
    with pytest.raises(DtypeError, match="torch.int64.*to\\(torch.float32\\)"):
        EdgeWeights(torch.eye(3, dtype=torch.int64), torch.eye(3, dtype=torch.int64))
    with pytest.raises(DtypeError, match="dtype and device of `X`"):
        EdgeWeights(X, X.float())
    with pytest.raises(ShapeError, match="must not be empty"):
        EdgeWeights(X[:0], X[:0])
    with pytest.raises(ShapeError, match='`side="right"`.*d=6, k=3'):
        EdgeWeights(X, X, side="right")
    with pytest.raises(ValueError, match="`side` must be one of 'left', 'right': got 'up'"):
        EdgeWeights(X, X, side="up")


@pytest.mark.bad_input
def test_a_table_must_be_one_skew_matrix(generator):
    with pytest.raises(NotOnManifoldError, match="not skew-symmetric.*geometry.skew"):
        EdgeWeights.of(torch.eye(3))
    with pytest.raises(ShapeError, match=r"one matrix \(d, d\)"):
        EdgeWeights.of(torch.zeros(2, 3, 3))
    with pytest.raises(ShapeError, match="must be square"):
        EdgeWeights.of(torch.zeros(2, 3))


@pytest.mark.bad_input
def test_pairs_must_be_rows_of_the_matrix(generator):
    W = EdgeWeights.of(gaussian(5, generator))
    with pytest.raises(DtypeError, match=r"integer tensor of row numbers: got torch.float32"):
        W.entries(torch.tensor([[0.0, 1.0]]))
    with pytest.raises(DtypeError, match="got list"):
        W.entries([[0, 1]])
    with pytest.raises(ShapeError, match=r"shape \(m, 2\): got \(3,\)"):
        W.entries(torch.tensor([0, 1, 2]))
    for bad in (-1, 5):
        with pytest.raises(ShapeError, match=r"rows in 0..4: got numbers from"):
            W.entries(torch.tensor([[0, bad]]))


@pytest.mark.bad_input
def test_a_partition_of_other_rows_is_refused(generator):
    W = EdgeWeights.of(gaussian(5, generator))
    with pytest.raises(ShapeError, match="d=5 rows.*got one of 4 rows"):
        W.blocks(Partition.of([[0, 1], [2, 3]]))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "h, message",
    [
        ("cube", "one of 'abs', 'sqrt', 'square': got 'cube'"),
        (3, "a name or a function of a tensor: got int"),
        (lambda w: w.clamp(min=0), r"must be even: got h\(1e-06\).*but h\(-1e-06\) = 0.*\|w\|"),
        (lambda w: w.abs() + 1, r"zero at zero: got h\(0\) = 1. Subtract"),
        (lambda w: (w.abs() - 1).clamp(min=0), r"positive away from zero.*h\(1e-06\) = 0.*abs"),
        (lambda w: -w.abs(), "positive away from zero"),
        (lambda w: w.abs().sum(), "one finite number for each entry: got shape"),
        (lambda w: 3.0, r"one finite number for each entry: got 3.0 for shape \(25,\)"),
        (lambda w: w.abs().log(), "must be"),
        (lambda w: 1 / w.abs(), "zero at zero: got h\\(0\\) = inf"),
    ],
)
def test_a_weight_function_must_be_even_zero_at_zero_and_positive_elsewhere(h, message):
    with pytest.raises(WeightFunctionError, match=message):
        weight_function(h)


@pytest.mark.bad_input
def test_a_monte_carlo_norm_needs_a_generator_and_a_number_of_entries(generator):
    W = EdgeWeights.of(gaussian(5, generator))
    with pytest.raises(TypeError, match="`generator` is needed"):
        W.h_norm("abs", num_samples=3)
    for r in (0, 11):
        with pytest.raises(ValueError, match=f"between 1 and d\\(d-1\\)/2 = 10: got {r}"):
            W.h_norm("abs", num_samples=r, generator=generator)


@pytest.mark.bad_input
def test_a_small_matrix_that_is_not_skew_is_refused(generator):
    with pytest.raises(NotOnManifoldError, match="not skew-symmetric"):
        EdgeWeights.of(1e-5 * torch.rand(6, 6, generator=generator))


def test_a_table_that_is_skew_up_to_rounding_is_made_exactly_so(generator):
    omega = gaussian(6, generator).to(torch.bfloat16) + 0.01 * torch.eye(6, dtype=torch.bfloat16)
    table = EdgeWeights.of(omega).dense()
    assert torch.equal(table, -table.mT)
