"""Our versions of the rivals have the properties that their papers claim."""

import pytest
import torch

from helpers import assert_close, fitted_slope, randn, random_stiefel
from skewflow.geometry import cayley, expm, omega
from skewflow.optim import AngleSGD
from skewflow_lab.bench.peers import RSDM, SPEL, CayleySGD, IntrinsicMuon, Landing, ManifoldMuon
from skewflow_lab.bench.peers._sign import msign, nearest
from skewflow_lab.bench.quality.matrix_problems import PCA, Procrustes

SHAPES = [(6, 6), (9, 3), (2, 5, 4)]
MAKERS = {
    "landing": lambda p, lr, **options: Landing(p, lr, **options),
    "RSDM permutation": lambda p, lr, **options: RSDM(p, lr, **options),
    "RSDM orthogonal": lambda p, lr, **options: RSDM(p, lr, permutation=False, **options),
    "Cayley SGD": lambda p, lr, **options: CayleySGD(p, lr, **options),
}


def point(shape, generator):
    *batch, d, k = shape
    return torch.nn.Parameter(random_stiefel(d, k, generator=generator, batch=tuple(batch)))


def distance(X):
    I = torch.eye(X.shape[-1], dtype=X.dtype)
    return float(torch.linalg.matrix_norm(X.detach().mT @ X.detach() - I).max())


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    "problem",
    [Procrustes(8, device="cpu"), PCA(9, 4, condition=10.0, device="cpu")],
    ids=["Procrustes", "PCA"],
)
def test_a_method_finds_the_optimum(name, problem):
    X = torch.nn.Parameter(problem.start())
    optimizer = MAKERS[name]([X], 0.5)
    for step in range(2000):
        X.grad = problem.gradient(X.detach(), step)
        optimizer.step()
    assert problem.loss(X.detach().double()) == pytest.approx(problem.optimum, rel=1e-4)
    assert distance(X) < 1e-4


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_landing_stays_in_its_safe_region_whatever_the_gradient(shape, momentum, generator):
    X = point(shape, generator)
    optimizer = Landing([X], lr=10.0, momentum=momentum)
    for _ in range(100):
        X.grad = 10 * randn(*shape, generator=generator)
        optimizer.step()
        assert distance(X) <= 0.5 + 1e-9
    X.grad.zero_()
    optimizer.param_groups[0]["momentum"] = 0.0
    for _ in range(200):
        optimizer.step()
    assert distance(X) < 1e-12


def test_the_two_parts_of_the_landing_field_are_orthogonal(generator):
    X, G = 1.1 * random_stiefel(7, 4, generator=generator), randn(7, 4, generator=generator)
    turn = (G @ (X.mT @ X) - X @ (G.mT @ X)) / 2
    pull = X @ (X.mT @ X - torch.eye(4, dtype=X.dtype))
    p = torch.nn.Parameter(X.clone())
    p.grad = G
    Landing([p], lr=1e-3).step()
    assert_close("X", X - 1e-3 * (turn + pull), p)
    assert abs(float((turn * pull).sum())) < 1e-12


@pytest.mark.parametrize("permutation", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_rsdm_stays_on_the_manifold_at_any_rate(shape, permutation, generator):
    X = point(shape, generator)
    optimizer = RSDM([X], lr=50.0, rows=0.6, permutation=permutation)
    for _ in range(200):
        X.grad = randn(*shape, generator=generator)
        optimizer.step()
    assert distance(X) < 1e-12


def test_rsdm_by_permutations_moves_a_random_set_of_rows(generator):
    X = point((10, 4), generator)
    before, sets = X.detach().clone(), []
    optimizer = RSDM([X], lr=0.1, rows=0.4)
    for _ in range(3):
        X.grad = randn(10, 4, generator=generator)
        optimizer.step()
        sets.append(tuple((X.detach() != before).any(-1).nonzero().flatten().tolist()))
        before = X.detach().clone()
    assert all(len(rows) == 4 for rows in sets) and len(set(sets)) > 1


@pytest.mark.parametrize("permutation", [True, False])
def test_rsdm_with_all_rows_is_riemannian_descent_to_second_order(permutation, generator):
    X, G = random_stiefel(6, 6, generator=generator), randn(6, 6, generator=generator)
    lrs, errors = [1e-2, 1e-3, 1e-4], []
    for lr in lrs:
        p = torch.nn.Parameter(X.clone())
        p.grad = G
        RSDM([p], lr, rows=1.0, permutation=permutation).step()
        errors.append(float((p - expm(-lr / 2 * omega(X, G)) @ X).norm().detach()))
    assert fitted_slope(lrs, errors) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("shape", SHAPES)
def test_iterations_of_cayley_sgd_approach_cayleys_transform(shape, generator):
    X = point(shape, generator)
    start, G = X.detach().clone(), randn(*shape, generator=generator) / 10
    X.grad = G
    CayleySGD([X], lr=0.5, iterations=60).step()
    W = -G @ start.mT + start @ (start.mT @ G) @ start.mT / 2
    assert_close("X", cayley(0.5 * (W - W.mT)) @ start, X)


def test_a_step_of_cayley_sgd_is_cut_where_its_iterations_would_not_contract(generator):
    X = point((9, 3), generator)
    X.grad = 1e4 * randn(9, 3, generator=generator)
    CayleySGD([X], lr=1.0).step()
    assert distance(X) < 0.5


def test_the_momentum_of_cayley_sgd_is_kept_tangent_and_goes_faster_downhill():
    problem = PCA(9, 4, condition=10.0, device="cpu")
    losses = {}
    for momentum in (0.0, 0.9):
        X = torch.nn.Parameter(problem.start())
        optimizer = CayleySGD([X], lr=0.02, momentum=momentum)
        seen = [problem.loss(X.detach().double())]
        for step in range(40):
            before = X.detach().clone()
            X.grad = problem.gradient(before, step)
            optimizer.step()
            seen.append(problem.loss(X.detach().double()))
        losses[momentum] = seen
        if momentum:
            M = optimizer.state[X]["momentum_buffer"]
            S = before.mT @ M
            assert float(M.norm()) > 0
            assert_close("X^T M", -S.mT, S, torch.float32)
    assert all(b < a for a, b in zip(losses[0.0], losses[0.0][1:], strict=False))
    assert losses[0.9][-1] < losses[0.0][-1] - 0.1 * (losses[0.0][0] - losses[0.0][-1])


SIGNS = {"SPEL": SPEL, "iMuon": IntrinsicMuon, "manifold Muon": ManifoldMuon}


def direction(make, X, G, lr=1e-7, **options):
    """The direction of a step, which is tangent to first order after it."""
    p = torch.nn.Parameter(X.clone())
    p.grad = G
    make([p], lr, **options).step()
    return (X - p.detach()) / lr


@pytest.mark.parametrize("shape", SHAPES)
def test_the_sign_is_the_polar_factor_to_a_thousandth(shape, generator):
    A = randn(*shape, generator=generator)
    U, _, V = torch.linalg.svd(A, full_matrices=False)
    assert float((msign(A) - U @ V).abs().max()) < 1e-3
    X = random_stiefel(*shape[-2:], generator=generator)
    for far in (0.05, 0.3, 0.8):
        scale = 1 + far * (2 * torch.rand(shape[-1], generator=generator, dtype=X.dtype) - 1)
        assert_close("X", X, nearest(X * scale, far))


@pytest.mark.parametrize("make", SIGNS.values(), ids=SIGNS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lr", [0.03, 0.5, 3.0])
def test_steps_by_signs_stay_on_the_manifold_whatever_the_gradient(make, shape, lr, generator):
    X = point(shape, generator)
    optimizer = make([X], lr, momentum=0.9)
    for scale in (1e-20, 1.0, 1e12):
        X.grad = scale * randn(*shape, generator=generator)
        optimizer.step()
        assert distance(X) < 1e-8


@pytest.mark.parametrize("make", SIGNS.values(), ids=SIGNS)
@pytest.mark.parametrize("problem", [Procrustes(8, device="cpu"), PCA(9, 4, 10.0, device="cpu")])
def test_steps_by_signs_find_the_optimum_where_their_rate_falls_to_zero(make, problem):
    X, steps = torch.nn.Parameter(problem.start()), 1000
    optimizer = make([X], 0.1, momentum=0.9)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / steps)
        X.grad = problem.gradient(X.detach(), step)
        optimizer.step()
    assert problem.loss(X.detach().double()) == pytest.approx(problem.optimum, rel=1e-3)


def test_of_square_matrices_all_three_take_the_spectral_step_of_ours(generator):
    X, G = random_stiefel(6, 6, generator=generator), randn(6, 6, generator=generator)
    ours = direction(AngleSGD, X, G, momentum=0.0, block_size="dense", retraction="exp")
    for make in SIGNS.values():
        found = direction(make, X, G)
        assert float((found - ours).abs().max()) < 0.02  # both signs are approximate
        assert float(torch.linalg.svdvals(found).min()) > 0.98


def test_the_two_parts_of_imuon_are_signs_and_its_direction_is_tangent(generator):
    X, G = random_stiefel(9, 4, generator=generator), randn(9, 4, generator=generator)
    found = direction(IntrinsicMuon, X, G)
    K = X.mT @ found
    assert float((K + K.mT).abs().max()) < 1e-5
    for part in (K, found - X @ K):
        assert float((torch.linalg.svdvals(part) - 1).abs().max()) < 1e-3


def test_the_ascent_of_manifold_muon_ends_at_the_steepest_tangent_direction(generator):
    X, G = random_stiefel(9, 4, generator=generator), randn(9, 4, generator=generator)
    A = direction(ManifoldMuon, X, G, ascents=3000)
    assert float(torch.linalg.matrix_norm(A, ord=2)) == pytest.approx(1.0, abs=0.01)
    for make in (SPEL, IntrinsicMuon):
        other = direction(make, X, G)  # the retraction leaves the tangent part
        other = other / torch.linalg.matrix_norm(other, ord=2)
        assert float((G * A).sum()) > 1.02 * float((G * other).sum())
