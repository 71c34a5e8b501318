"""The problems: gradients, optima, starts, and the order of data, against what shares no code."""

from dataclasses import replace

import pytest
import torch

from helpers import assert_close, random_skew, scipy_expm
from skewflow.geometry import haar, omega, orthogonality_error, project
from skewflow.optim import FlowSGD
from skewflow_lab.bench.quality.copying import HELD_OUT, CopyingNet
from skewflow_lab.bench.quality.matrix_problems import PCA, Assignment, Brockett, Procrustes
from skewflow_lab.bench.quality.problem import generator_norm, on_manifold
from skewflow_lab.bench.quality.stochastic_problems import ICA, OnlinePCA, WideLinear
from skewflow_lab.bench.quality.suite import SUITE

EXACT = {
    "procrustes": lambda: Procrustes(7, device="cpu"),
    "batched-procrustes": lambda: Procrustes(5, (3,), device="cpu"),
    "pca": lambda: PCA(9, 4, device="cpu"),
    "brockett": lambda: Brockett(6, device="cpu"),
    "assignment": lambda: Assignment(6, device="cpu"),
    # One batch of all samples is the whole loss.
    "online-pca": lambda: OnlinePCA(40, 9, 3, 40, device="cpu"),
    "ica": lambda: ICA(200, 5, 200, device="cpu"),
}
SMALL = {
    **EXACT,
    "online-pca batches": lambda: OnlinePCA(40, 9, 3, 8, device="cpu"),
    "wide-linear": lambda: WideLinear(8, 4, pool=5, device="cpu"),
    "copying": lambda: CopyingNet(6, 2, 3, device="cpu"),
}


@pytest.fixture(params=SMALL, scope="module")
def problem(request):
    return SMALL[request.param]()


def moved(X, A, h):
    return scipy_expm(h * A) @ X


@pytest.mark.parametrize("name", EXACT)
def test_a_gradient_is_the_derivative_of_the_loss_along_rotations(name, generator):
    problem = EXACT[name]()
    X = project(problem.start().double())
    G = problem.gradient(X.float(), 0).double() / problem.unit
    A = random_skew(X.shape[-2], generator=generator)
    h = 1e-4
    slope = sum(s * problem.loss(moved(X, A, s * h)) for s in (1, -1)) / (2 * h)
    # The gradient is in float32, the difference quotient is exact to h squared.
    assert float((G * (A @ X)).sum()) == pytest.approx(slope, rel=1e-4, abs=1e-4)


def test_the_gradient_of_the_wide_layer_is_that_of_its_batch():
    problem = WideLinear(8, 4, pool=5, device="cpu")
    X = problem.start().requires_grad_()
    rows = problem.rows(3)
    ((problem.data[rows] @ X - problem.labels[rows]) ** 2).sum().div(2 * 4).backward()
    G = problem.gradient(X.detach(), 3) / problem.unit
    assert_close("G", X.grad, G, torch.float32)


def test_the_loss_of_the_wide_layer_is_the_expectation_of_its_batches():
    problem = WideLinear(4, 50, pool=400, device="cpu")
    X = problem.start()
    per_sample = ((problem.data @ X - problem.labels) ** 2).sum(-1) / 2
    # A mean of 20000 samples; five standard errors.
    margin = 5 * float(per_sample.std()) / len(per_sample) ** 0.5
    assert float(per_sample.mean()) == pytest.approx(problem.loss(X.double()), abs=margin)


def test_the_gradient_of_the_net_is_that_of_the_transition_and_the_rest_moves():
    problem = CopyingNet(6, 2, 3, device="cpu")
    X = problem.start()
    head = problem.net.head.weight.detach().clone()
    x, y = problem.task.batch(4)
    h, direction = 1e-3, torch.ones(6, 6)
    values = []
    with torch.no_grad():
        for sign in (1, -1):
            problem.weight.copy_(X + sign * h * direction)
            values.append(float(problem.task.loss(problem.net, x, y)))
    G = problem.gradient(X, 4) / problem.unit
    # Differences of float32 losses.
    assert float(G.sum()) == pytest.approx((values[0] - values[1]) / (2 * h), rel=1e-2, abs=1e-3)
    assert not torch.equal(problem.net.head.weight, head)


def test_a_fresh_net_is_as_at_first_and_the_loss_is_of_a_batch_held_out():
    problem = CopyingNet(6, 2, 3, device="cpu")
    X = problem.start()
    first = problem.loss(X)
    own = problem.fresh()
    for step in range(3):
        own.gradient(X, step)
    assert problem.loss(X) == first and own.loss(X) != first
    assert problem.fresh().unit == problem.unit
    with torch.no_grad():
        assert float(own.task.loss(own.net, *own.task.batch(HELD_OUT))) == own.loss(X)


def test_the_start_is_orthonormal_the_same_and_a_copy(problem):
    X = problem.start()
    assert X.shape == problem.shape and X.dtype == torch.float32
    assert float(orthogonality_error(X).max()) < 1e-5
    X.zero_()
    assert torch.equal(problem.start(), problem.fresh().start())
    assert not torch.equal(problem.start(), X)


def test_a_first_exact_step_with_rate_one_turns_by_a_radian(problem):
    X = problem.start()
    G = problem.fresh().gradient(X, 0)
    norm = float(torch.linalg.matrix_norm(omega(X, G), 2).max())
    # Power iterations come from below, and slowly where two norms are close.
    assert norm == pytest.approx(1.0, rel=0.1)
    assert generator_norm(X, G) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("name", ["online-pca batches", "ica", "wide-linear"])
def test_factors_multiply_to_the_gradient_and_are_thin(name):
    problem = SMALL[name]()
    X = problem.start()
    A, B = problem.factors(X, 2)
    assert (
        problem.is_factored()
        and A.shape == (X.shape[0], problem.batch)
        and B.shape == (X.shape[1], problem.batch)
    )
    assert_close("G", problem.gradient(X, 2), A @ B.mT, torch.float32)


def test_problems_with_dense_gradients_have_no_factors():
    problem = EXACT["pca"]()
    assert problem.factors(problem.start(), 0) is None and not problem.is_factored()


def test_a_batch_depends_on_its_number_alone_and_an_epoch_shows_all():
    problem = OnlinePCA(40, 9, 3, 8, device="cpu")
    X = problem.start()
    at_seven = problem.gradient(X, 7)
    problem.gradient(X, 0)
    assert torch.equal(problem.gradient(X, 7), at_seven)
    epochs = [torch.cat([problem.rows(5 * e + i) for i in range(5)]) for e in range(2)]
    assert all(sorted(rows.tolist()) == list(range(40)) for rows in epochs)
    assert not torch.equal(*epochs)


def solutions():
    p = EXACT["procrustes"]()
    U, _, Vh = torch.linalg.svd(p.B.double() @ p.A.double().mT)
    yield "procrustes", p, U @ Vh
    p = EXACT["batched-procrustes"]()
    U, _, Vh = torch.linalg.svd(p.B.double() @ p.A.double().mT)
    yield "batched-procrustes", p, U @ Vh
    p = EXACT["pca"]()
    yield "pca", p, torch.linalg.eigh(p.A.double()).eigenvectors[:, -4:]
    p = EXACT["brockett"]()
    yield "brockett", p, torch.linalg.eigh(p.A.double()).eigenvectors
    p = EXACT["online-pca"]()
    yield "online-pca", p, torch.linalg.svd(p.data.double()).Vh[:3].mT
    p = SMALL["wide-linear"]()
    yield "wide-linear", p, torch.linalg.lstsq(p.data.double(), p.labels.double()).solution


@pytest.mark.parametrize("case", list(solutions()), ids=lambda case: case[0])
def test_the_optimum_is_the_loss_of_the_known_solution(case, generator):
    _, problem, X = case
    # The data are in float32, some losses in float64 of what was rounded to them.
    assert problem.loss(X) == pytest.approx(problem.optimum, rel=1e-6, abs=1e-6)
    A = random_skew(X.shape[-2], generator=generator)
    assert all(problem.loss(moved(X, A, h)) > problem.optimum for h in (-0.1, 0.1, 1.0))


def test_the_start_of_procrustes_can_be_rotated_to_its_solution():
    signs = set()
    for seed in range(6):
        problem = Procrustes(5, (2,), device="cpu", seed=seed)
        U, _, Vh = torch.linalg.svd(problem.B @ problem.A.mT)
        dets = torch.linalg.det(U @ Vh).round()
        assert torch.equal(torch.linalg.det(problem.start()).round(), dets)
        signs |= set(dets.tolist())
    assert signs == {-1.0, 1.0}


def test_the_pca_matrix_has_the_stated_condition_number():
    values = torch.linalg.eigvalsh(PCA(30, 20, device="cpu").A.double())
    # In float32 the smallest eigenvalue, 1e-3, is known to 1e-7.
    assert float(values[-1] / values[0]) == pytest.approx(1000, rel=1e-3)


def test_the_optimum_of_ica_is_stationary_and_finds_the_sources():
    problem = ICA(4000, 5, 4000, device="cpu")
    X = problem.solution
    gradient = problem.gradient(X.float(), 0) / problem.unit
    assert float(omega(X.float(), gradient).abs().max()) < 1e-5
    assert problem.loss(X) < problem.loss(problem.start().double())
    # A source that is recovered is as peaked as Laplace's law, whose kurtosis is 6.
    Y = problem.data.double() @ X
    assert float((Y**4).mean(0).min()) > 5.0


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 0.1])
def test_the_point_that_counts_is_the_polar_factor(scale, generator):
    X = torch.linalg.qr(torch.randn(2, 7, 4, generator=generator, dtype=torch.float64)).Q
    X = X + scale * torch.randn(2, 7, 4, generator=generator, dtype=torch.float64) / 4
    Y, error = on_manifold(X)
    assert_close("Y", project(X), Y)
    assert error == pytest.approx(float(orthogonality_error(X).max()) / 2)


def test_many_columns_may_be_away_by_more_than_one_in_all():
    X = 1.1 * torch.eye(40, dtype=torch.float64)  # each by 0.21, all by 1.3
    Y, error = on_manifold(X)
    assert_close("Y", torch.eye(40, dtype=torch.float64), Y)
    assert error == pytest.approx(0.21)


def test_another_order_of_the_assignment_is_another_start_of_the_same_loss():
    problem = Assignment(6, device="cpu")
    first, other, again = (problem.fresh(order) for order in (0, 1, 1))
    assert torch.equal(first.start(), problem.start())
    assert torch.equal(other.start(), again.start()) and orthogonality_error(other.start()) < 1e-5
    assert not torch.equal(other.start(), first.start())
    X = other.start()
    assert other.loss(X.double()) == problem.loss(X.double())
    assert torch.equal(other.gradient(X, 0), problem.gradient(X, 0))


def test_one_method_ends_in_minima_of_the_assignment_that_are_as_far_apart_as_its_floor():
    problem, ends = Assignment(60, device="cpu"), []
    for seed in range(5):
        X = haar(60, generator=torch.Generator().manual_seed(seed))
        p = torch.nn.Parameter(X)
        optimizer = FlowSGD([p], lr=0.06, momentum=0.9, block_size="dense", retraction="polar")
        for step in range(500):
            p.grad = problem.gradient(p.detach(), step)
            optimizer.step()
        Y, _ = on_manifold(p)
        ends.append(problem.loss(Y))
    gaps = (torch.tensor(ends) - min(ends)) / (problem.loss(problem.start().double()) - min(ends))
    floor = SUITE["assignment"].floor
    assert 0.5 * floor < gaps.max() < 2 * floor  # it hides luck, and no progress


def test_a_point_that_is_far_or_not_finite_has_none():
    assert on_manifold(2 * torch.eye(3)) == (None, pytest.approx(3.0))
    assert on_manifold(torch.full((3, 3), torch.nan)) == (None, None)
    assert on_manifold(torch.full((3, 3), 1e30)) == (None, pytest.approx(3e60 * 3**0.5))


@pytest.mark.parametrize("name", SUITE)
def test_reduced_and_tiny_problems_are_smaller_ones_of_the_same_kind(name):
    entry = SUITE[name]
    small = entry.make("tiny", "cpu")
    assert isinstance(small, entry.kind)
    sizes = zip(entry.full, entry.reduced, entry.tiny, strict=True)
    assert all(full > reduced > tiny for full, reduced, tiny in sizes)
    assert (small.shape[-1] == small.shape[-2]) != ("pca" in name)
    budgets = [entry.budget(size) for size in ("full", "reduced", "tiny")]
    assert budgets == [*entry.seconds, entry.seconds[1]]


def test_a_size_is_made_from_its_own_numbers():
    entry = replace(SUITE["pca"], full=(9, 4), reduced=(7, 3), tiny=(5, 2))
    shapes = [entry.make(size, "cpu").shape for size in ("full", "reduced", "tiny")]
    assert shapes == [(9, 4), (7, 3), (5, 2)]


@pytest.mark.parametrize(
    "problem",
    [OnlinePCA(200, 16, 4, 8, device="cpu"), CopyingNet(8, 3, 4, device="cpu")],
    ids=["samples", "sequences"],
)
def test_another_order_has_other_batches_and_the_same_start(problem):
    X = problem.start()
    first, same, other = (problem.fresh(order) for order in (0, 0, 1))
    assert torch.equal(other.start(), X) and other.loss(X.double()) == first.loss(X.double())
    for step in (0, 30):
        G, again, H = (p.gradient(X, step) for p in (first, same, other))
        assert torch.equal(G, again) and not torch.allclose(G, H)
