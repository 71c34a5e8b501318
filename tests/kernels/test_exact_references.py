"""The references of exact steps: they are what scipy computes from the assembled generator."""

import numpy as np
import pytest
import scipy.linalg
import torch

from helpers import assert_close, randn, random_stiefel
from skewflow.kernels.exact_cayley import cayley_step
from skewflow.kernels.exact_exponential import reference as exponential
from skewflow.kernels.exact_polar import reference as polar
from skewflow.kernels.exact_polar.limits import WIDEST
from skewflow.kernels.exact_step import exact_step, forms_omega

SHAPES = [(2, 1), (2, 2), (7, 3), (7, 4), (12, 12), (33, 17), (40, 6)]
LR = 0.05


def entry_by_entry(X, D, w):
    """The generator by its definition, in numpy."""
    d = len(X)
    omega = np.zeros((d, d))
    for i in range(d):
        for j in range(d):
            divisor = 1.0 if w is None else np.sqrt((w[i] + w[j]) / 2)
            omega[i, j] = (D[i] @ X[j] - X[i] @ D[j]) / divisor
    return omega


def by_exponential(omega, X):
    return scipy.linalg.expm(-LR * omega) @ X


def by_cayley(omega, X):
    I = np.eye(len(X))
    return scipy.linalg.solve(I + LR / 2 * omega, (I - LR / 2 * omega) @ X)


def by_polar(omega, X):
    T = LR * omega @ X
    bound = np.sqrt(np.linalg.norm(T.T @ T @ T.T @ T))
    return scipy.linalg.polar(X - min(1.0, np.sqrt(WIDEST / bound)) * T)[0]


STEPS = {
    "exp": (exponential.exponential_step, by_exponential),
    "cayley": (cayley_step, by_cayley),
    "polar": (polar.polar_step, by_polar),
}


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("retraction", STEPS)
def test_the_reference_is_what_scipy_computes(retraction, shape, divided, generator):
    d = shape[0]
    X = random_stiefel(*shape, batch=(3,), generator=generator)
    D = randn(3, *shape, generator=generator)
    D *= torch.tensor([1e-3, 1.0, 10.0], dtype=D.dtype)[
        :, None, None
    ]  # a short, a long, a cut step
    w = randn(3, d, generator=generator).square() + 0.1 if divided else None
    reference, oracle = STEPS[retraction]
    Y = reference(X, D, LR, w)
    for b in range(3):
        x = X[b].numpy()
        omega = entry_by_entry(x, D[b].numpy(), None if w is None else w[b].numpy())
        # A long step knows its angles to the rounding of their number.
        assert_close("Y", oracle(omega, x), Y[b], torch.float64, factor=10)


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("retraction", ["exp", "polar"])
def test_the_fast_step_is_that_of_the_reference(retraction, shape, divided, generator):
    d, k = shape
    X = random_stiefel(*shape, batch=(3,), generator=generator)
    D = randn(3, *shape, generator=generator)
    D *= torch.tensor([1e-3, 1.0, 10.0], dtype=D.dtype)[:, None, None]
    w = randn(3, d, generator=generator).square() + 0.1 if divided else None
    mean = w
    if w is not None and not forms_omega(d, k, retraction):  # one divisor for all planes
        mean = w.mean(-1, keepdim=True).expand(3, d)
    expected = STEPS[retraction][0](X, D, LR, mean)
    for dtype in (torch.float64, torch.float32):
        one = None if w is None else w.to(dtype)
        Y = exact_step(X.to(dtype), D.to(dtype), LR, retraction, one)
        # The smallest singular value of a tangent step is 1, its error that of the largest.
        assert_close("Y", expected, Y, dtype, factor=10)
        for b in range(3):
            one = None if w is None else w[b : b + 1].to(dtype)
            Y = exact_step(X[b : b + 1].to(dtype), D[b : b + 1].to(dtype), LR, retraction, one)
            assert_close("Y of one", expected[b : b + 1], Y, dtype, factor=10)
