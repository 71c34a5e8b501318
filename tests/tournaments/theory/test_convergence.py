"""Theorem 5.1 and the Haar remark (Sec. 5, 9.9), exactly where expectations can be summed."""

from itertools import combinations

import pytest
import torch

from helpers import assert_close, randn, random_stiefel
from skewflow.geometry import givens, omega
from skewflow.kernels import rotate_pairs
from skewflow.tournaments import round_robin
from skewflow.tournaments.theory import enumerate_partitions, gradient_norm_bound


class Quadratic:
    """F(X) = tr(X^T A X B) / 2 on O(4), whose constants are known."""

    def __init__(self, generator):
        A, B = (randn(4, 4, generator=generator) for _ in range(2))
        self.A, self.B = (A + A.mT) / 2, (B + B.mT) / 2
        a, b = torch.linalg.eigvalsh(self.A), torch.linalg.eigvalsh(self.B)
        self.maximum = (a * b).sum().item() / 2  # von Neumann's trace inequality
        self.lipschitz = (a.abs().max() * b.abs().max()).item()
        self.gradient_at_identity = (self.A @ self.B).norm().item()
        # Uniform on three matchings: E|estimate|^2 = 3 |Omega|^2, and |Omega| <= 2 |A X B|.
        self.second_moment = 3 * (2 * a.abs().max() * b.norm()).item() ** 2

    def value(self, X):
        return ((self.A @ X) * (X @ self.B)).sum((-2, -1)) / 2

    def omega(self, X):
        return omega(X, self.A @ X @ self.B)

    def bound(self, X0, step_sizes):
        return gradient_norm_bound(
            gap=self.maximum - self.value(X0).item(),
            second_moment=self.second_moment,
            lipschitz=self.lipschitz,
            gradient_at_identity=self.gradient_at_identity,
            d=4,
            step_sizes=step_sizes,
        )


MATCHINGS = [T.edges() for T in round_robin(4)]


def step(F, X, r, eta):
    i, j = MATCHINGS[r].unbind(-1)
    return rotate_pairs(X, MATCHINGS[r], 3 * eta * F.omega(X)[i, j])


@pytest.mark.parametrize("eta", [1e-3, 1e-2, 0.1])
def test_the_bound_of_theorem_5_1_holds_for_the_exact_expectation(eta, generator):
    F = Quadratic(generator)
    X0 = random_stiefel(4, generator=generator)
    level, expected = [X0], []
    for _ in range(6):  # all 3^i paths of i steps, each with the same probability
        expected.append(sum(F.omega(X).square().sum().item() for X in level) / len(level))
        level = [step(F, X, r, eta) for X in level for r in range(3)]
    assert min(expected) <= F.bound(X0, [eta] * len(expected))


@pytest.mark.parametrize("eta", [1e-4, 1e-3, 1e-2])
def test_one_step_gains_what_the_proof_says(eta, generator):
    # E F(X_1) - F(X_0) >= eta |Omega|^2 / 2 - eta^2 / 2 C E|estimate|^2, summed over the matchings.
    F = Quadratic(generator)
    C = (2 * 4**0.5 + 1) * F.lipschitz + F.gradient_at_identity
    for _ in range(20):
        X = random_stiefel(4, generator=generator)
        square = F.omega(X).square().sum().item()
        gain = sum(F.value(step(F, X, r, eta)).item() for r in range(3)) / 3 - F.value(X).item()
        assert gain >= eta * square / 2 - eta**2 / 2 * C * 3 * square
        assert gain <= eta * square / 2 + eta**2 / 2 * C * 3 * square


@pytest.mark.slow
def test_over_a_long_run_the_bound_says_something(generator):
    F = Quadratic(generator)
    X = random_stiefel(4, generator=generator)
    num_steps = 200_000
    largest = max(
        F.omega(random_stiefel(4, generator=generator)).square().sum().item() for _ in range(500)
    )
    eta = (2 * F.maximum / (F.second_moment * 6 * F.lipschitz * num_steps)) ** 0.5
    bound = F.bound(X, [eta] * num_steps)
    assert bound < largest
    total = 0.0
    for _ in range(num_steps):
        total += F.omega(X).square().sum().item()
        X = step(F, X, int(torch.randint(3, (), generator=generator)), eta)
    assert total / num_steps <= bound


@pytest.mark.bad_input
def test_the_bound_needs_positive_steps():
    for step_sizes in ([], [1.0, -0.5]):
        with pytest.raises(ValueError, match="`step_sizes` must be positive"):
            gradient_norm_bound(
                gap=1.0,
                second_moment=1.0,
                lipschitz=1.0,
                gradient_at_identity=1.0,
                d=4,
                step_sizes=step_sizes,
            )


def moment_operator(d, degree):
    """E[R (x) ... (x) R] over a uniform matching and independent uniform angles, exactly.

    The tensor power is a trigonometric polynomial of that degree in each angle, so the mean over
    2 * degree + 1 equally spaced angles is its integral.
    """
    angles = torch.arange(2 * degree + 1, dtype=torch.float64) * 2 * torch.pi / (2 * degree + 1)

    def power(R):
        result = R
        for _ in range(degree - 1):
            result = torch.kron(result, R)
        return result

    of_pair = {
        pair: sum(power(givens(d, *pair, a, dtype=torch.float64)) for a in angles) / len(angles)
        for pair in combinations(range(d), 2)
    }
    matchings = list(enumerate_partitions(d, 2))
    total = torch.zeros(d**degree, d**degree, dtype=torch.float64)
    for T in matchings:
        operator = torch.eye(d**degree, dtype=torch.float64)
        for pair in T.edges().tolist():
            operator = of_pair[tuple(pair)] @ operator
        total += operator
    return total / len(matchings)


def test_random_matchings_with_random_angles_approach_the_haar_measure():
    # E tr(X)^2 = trace of the operator's power, since X_0 = I; Haar on SO(6) has 1 and 3.
    second = torch.linalg.matrix_power(moment_operator(6, 2), 150)
    assert_close("E tr^2", 1.0, second.trace())
    fourth = torch.linalg.matrix_power(moment_operator(5, 4), 150)
    assert_close("E tr^4", 3.0, fourth.trace())


def test_the_determinant_is_conserved_so_only_one_component_is_reached(generator):
    for sign in (1.0, -1.0):
        X = torch.eye(6, dtype=torch.float64)
        X[0, 0] = sign
        for _ in range(50):
            T = round_robin(6)[int(torch.randint(5, (), generator=generator))]
            X = rotate_pairs(X, T.edges(), 10 * randn(3, generator=generator))
        assert_close("det", sign, torch.linalg.det(X))
