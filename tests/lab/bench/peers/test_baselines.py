"""The rivals do what their papers say: a benchmark against a broken rival proves nothing."""

import pytest
import torch

from helpers import assert_close, fitted_slope, randn, scipy_expm
from skewflow.geometry import cayley, expm, omega
from skewflow.geometry.matrices import as_matrices
from skewflow.optim import FlowSGD
from skewflow_lab.bench.peers import baselines
from skewflow_lab.bench.peers.baselines import BASELINES, optimizer
from skewflow_lab.bench.step.weights import haar_weights, parameters

METHODS = {**BASELINES, "FlowSGD dense": optimizer(FlowSGD, block_size="dense")}
SHAPES = [(6, 4), (9, 3), (4, 6), (4, 2, 3, 3), (5, 5)]
# Importing pogo compiles with torch, which warns about itself.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
LIBRARIES = {"geoopt RiemannianSGD": "geoopt", "geotorch": "geotorch", "pogo-torch": "pogo"}


@pytest.fixture(params=METHODS)
def name(request):
    if request.param in LIBRARIES:
        pytest.importorskip(LIBRARIES[request.param])
    return request.param


def start(*shapes, dtype=torch.float64):
    weights, gradients = haar_weights(shapes, dtype, torch.device("cpu"))
    return parameters(weights, gradients)


def values(params, method):
    """<G, X> of each weight: linear, so its gradient is G everywhere."""
    return [
        float((as_matrices(p.grad)[0] * X).sum())
        for p, X in zip(params, method.weights(), strict=True)
    ]


def error(X):
    return float((X.mT @ X - torch.eye(X.shape[-1], dtype=X.dtype)).norm())


def test_every_method_starts_from_the_given_weights(name):
    params = start(*SHAPES)
    before = [as_matrices(p.detach())[0].clone() for p in params]
    for expected, X in zip(before, METHODS[name](params).weights(), strict=True):
        assert_close("X", expected, X)


def test_every_step_goes_downhill_and_stays_orthogonal(name):
    params = start(*SHAPES)
    method = METHODS[name](params)
    last = values(params, method)
    for _ in range(5):
        method.step()
        now = values(params, method)
        assert all(a < b for a, b in zip(now, last, strict=True))
        last = now
    # Landing keeps off the manifold on purpose, by about the square of the step's angle.
    limit = 1e-4 if name == "landing" else 1e-9
    assert all(error(X) < limit for X in method.weights())


def test_every_method_finds_the_procrustes_answer(name, monkeypatch):
    # On a connected manifold the least <G, X> is minus the sum of the singular values of G.
    monkeypatch.setattr(baselines, "LR", 0.2)
    params = start((6, 4), (3, 7))
    method = METHODS[name](params)
    for _ in range(600):
        method.step()
    best = [-float(torch.linalg.svdvals(p.grad).sum()) for p in params]
    assert values(params, method) == pytest.approx(best, rel=1e-4)


def test_the_exact_step_is_the_exponential_of_geometry_and_of_scipy(generator):
    X, G = torch.linalg.qr(randn(7, 3, generator=generator)).Q, randn(7, 3, generator=generator)
    A = -baselines.LR * omega(X, G)
    assert_close("X", expm(A) @ X, baselines.exact_exponential(X, G))
    assert_close("X", scipy_expm(A) @ X, baselines.exact_exponential(X, G))


@pytest.mark.parametrize("k", [2, 5, 8], ids=["thin: (2k, 2k) solve", "(d, d) solve", "square"])
def test_the_cayley_step_is_the_transform_of_geometry(k, generator):
    X, G = torch.linalg.qr(randn(8, k, generator=generator)).Q, randn(8, k, generator=generator)
    expected = cayley(-baselines.LR * omega(X, G)) @ X
    assert_close("X", expected, baselines.cayley_solve(X, G))


@pytest.mark.parametrize(
    "update, speed",
    [(baselines.qr_retraction, 1.0), (baselines.landing, 0.5)],
    ids=["QR", "landing"],
)
def test_a_step_leaves_the_exponential_in_second_order(update, speed, generator, monkeypatch):
    X, G = torch.linalg.qr(randn(8, 5, generator=generator)).Q, randn(8, 5, generator=generator)
    lrs, errors = [1e-2, 1e-3, 1e-4], []
    for lr in lrs:
        monkeypatch.setattr(baselines, "LR", lr)
        exact = expm(-speed * lr * omega(X, G)) @ X
        errors.append(float((update(X, G) - exact).norm()))
    assert fitted_slope(lrs, errors) == pytest.approx(2.0, abs=0.1)


def test_landing_comes_back_to_the_manifold(monkeypatch):
    monkeypatch.setattr(baselines, "LR", 0.1)
    X = 1.2 * torch.eye(5, 3, dtype=torch.float64)
    for _ in range(200):
        X = baselines.landing(X, torch.zeros_like(X))
    assert error(X) < 1e-12
