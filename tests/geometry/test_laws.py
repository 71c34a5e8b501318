"""What every function of matrices obeys: batches, dtypes, strides, untouched inputs, gradients."""

import pytest
import torch

from helpers import EPS, assert_close, randn, random_skew, random_stiefel
from skewflow import geometry as geo

BATCH = (2, 3)


def inputs(batch, generator):
    """One matrix of each kind, by the letter that `CASES` asks for, in float64."""
    X = random_stiefel(6, 4, batch=batch, generator=generator)
    Z, Y = (geo.tangent_project(X, randn(*batch, 6, 4, generator=generator)) / 2 for _ in range(2))
    return {
        "X": X,  # a point of ST(6, 4)
        "Y": Y,  # two tangent vectors there
        "Z": Z,
        "M": randn(*batch, 6, 4, generator=generator),  # any matrix of that shape
        "W": random_skew(6, batch=batch, generator=generator) / 2,
        "A": random_skew(4, batch=batch, generator=generator) / 2,
        "B": randn(*batch, 2, 4, generator=generator) / 2,
        "Q": random_stiefel(5, batch=batch, generator=generator),  # a point of O(5)
        "G": randn(*batch, 5, 5, generator=generator) / 2,
    }


def onto_complement(X):
    """The projector C C^T, the same for every basis C; summed, as autocast rounds products."""
    C = geo.complement(X)
    return (C[..., :, None, :] * C[..., None, :, :]).sum(-1)


CASES = {
    "cayley": ("W", geo.cayley),
    "complement": ("X", onto_complement),
    "curve": ("XW", lambda X, W: geo.curve(X, W, 0.7)),
    "expm": ("W", geo.expm),
    "geodesic": ("XZ", lambda X, Z: geo.geodesic(X, Z, 0.7)),
    "geodesic-square": ("QG", lambda Q, G: geo.geodesic(Q, 2 * geo.tangent_from(Q, G), 0.7)),
    "inner-canonical": ("XYZ", geo.inner),
    "inner-euclidean": ("XYZ", lambda X, Y, Z: geo.inner(X, Y, Z, "euclidean")),
    "lift": ("XZ", geo.lift),
    "omega-left": ("XM", geo.omega),
    "omega-right": ("QG", lambda Q, G: geo.omega(Q, G, "right")),
    "orthogonality_error": ("M", geo.orthogonality_error),
    "project": ("M", geo.project),
    "riemannian_gradient-canonical": ("XM", geo.riemannian_gradient),
    "riemannian_gradient-euclidean": (
        "XM",
        lambda X, M: geo.riemannian_gradient(X, M, "euclidean"),
    ),
    "skew": ("G", geo.skew),
    "tangent_from": ("XAB", geo.tangent_from),
    "tangent_from-square": ("QG", geo.tangent_from),
    "tangent_project": ("XM", geo.tangent_project),
    "taylor": ("W", lambda W: geo.taylor(W, terms=12)),
}

ELSEWHERE = {
    "Check": ("", lambda: geo.Check(True, "")),  # an answer
    "basis": ("", lambda: geo.basis(4, 0, 1)),  # made from numbers
    "givens": ("", lambda: geo.givens(4, 0, 1, 0.3)),
    "haar": ("", lambda: geo.haar(6, 4, generator=torch.Generator().manual_seed(0))),
    "tangent_dimension": ("", lambda: geo.tangent_dimension(4, 3)),
    "check_skew": ("W", geo.check_skew),  # yes or no
    "check_special": ("Q", geo.check_special),
    "check_stiefel": ("X", geo.check_stiefel),
    "check_tangent": ("XZ", geo.check_tangent),
    # Two spaces of four dimensions in six meet: the angles are zero there, and have no derivative.
    "principal_angles": ("X", lambda X: geo.principal_angles(X, X.flip(-2))),
    "grassmann_distance": ("X", lambda X: geo.grassmann_distance(X, X.flip(-2))),
    "require": ("X", lambda X: geo.require(geo.check_stiefel(X))),
}
"""What the laws of batches, dtypes and gradients do not fit."""

# The complement is one of many bases of a space: torch has no derivative of it.
NOT_DIFFERENTIABLE = {"complement", "tangent_from"}


@pytest.fixture(params=CASES)
def case(request):
    letters, function = CASES[request.param]
    return request.param, letters, function


def test_every_public_function_is_under_the_laws():
    covered = {name.split("-")[0] for name in CASES}
    assert covered | set(ELSEWHERE) == set(geo.__all__)


def test_batched_result_equals_the_loop(case, generator):
    name, letters, function = case
    given = inputs(BATCH, generator)
    batched = function(*(given[x] for x in letters))
    loop = [[function(*(given[x][a, b] for x in letters)) for b in range(3)] for a in range(2)]
    assert_close(name, torch.stack([torch.stack(row) for row in loop]), batched)


def test_result_has_the_dtype_of_the_input_and_its_accuracy(case, generator):
    name, letters, function = case
    exact = inputs((), generator)
    for dtype in EPS:
        given = [exact[x].to(dtype) for x in letters]
        result = function(*given)
        low = dtype in (torch.bfloat16, torch.float16)
        assert result.dtype == (torch.float32 if low and name == "orthogonality_error" else dtype)
        # Sums of up to 24 rounded products, in half precision all the way.
        expected = function(*(x.double() for x in given))
        assert_close(f"{name}, {dtype}", expected, result, dtype, factor=3)


def test_strides_do_not_matter(case, generator):
    name, letters, function = case
    given = [inputs(BATCH, generator)[x] for x in letters]
    strided = [x.mT.contiguous().mT for x in given]
    assert not any(x.is_contiguous() for x in strided)
    assert_close(name, function(*given), function(*strided))


def test_inputs_are_left_untouched(case, generator):
    _, letters, function = case
    given = [inputs(BATCH, generator)[x] for x in letters]
    copies = [x.clone() for x in given]
    function(*given)
    assert all(torch.equal(x, copy) for x, copy in zip(given, copies, strict=True))


@pytest.mark.parametrize("name", [*CASES, *ELSEWHERE])
def test_autocast_changes_no_bit(name, generator):
    letters, function = (CASES | ELSEWHERE)[name]
    exact = inputs((), generator)
    for dtype in (torch.float64, torch.float32):
        given = [exact[x].to(dtype) for x in letters]
        expected = function(*given)
        with torch.autocast("cpu", torch.bfloat16):
            result = function(*given)
        if isinstance(expected, torch.Tensor):
            assert result.dtype == expected.dtype and torch.equal(result, expected)
        else:
            assert result == expected


@pytest.mark.bad_input
def test_autocast_is_on_again_after_a_call_that_raised():
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(ValueError, match="square"):
            geo.expm(torch.zeros(3, 2))
        assert (torch.eye(2) @ torch.eye(2)).dtype == torch.bfloat16


@pytest.mark.parametrize("name", [name for name in CASES if name not in NOT_DIFFERENTIABLE])
def test_gradients_equal_finite_differences(name, generator):
    letters, function = CASES[name]
    given = [inputs((), generator)[x].requires_grad_() for x in letters]
    assert torch.autograd.gradcheck(function, given)


@pytest.mark.parametrize("d, k", [(5, 1), (7, 3)])
def test_gradients_of_thin_geodesics_equal_finite_differences(d, k, generator):
    X = random_stiefel(d, k, generator=generator)
    Z = geo.tangent_project(X, randn(d, k, generator=generator))
    given = (X.requires_grad_(), Z.requires_grad_())
    assert torch.autograd.gradcheck(lambda X, Z: geo.geodesic(X, Z, 0.7), given)


def test_gradient_of_a_tangent_vector_reaches_its_coordinates(generator):
    X, A, B = (inputs((), generator)[x] for x in "XAB")
    given = (A.requires_grad_(), B.requires_grad_())
    assert torch.autograd.gradcheck(lambda A, B: geo.tangent_from(X, A, B), given)


def test_gradient_of_a_givens_rotation_reaches_its_angle():
    theta = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda theta: geo.givens(3, 0, 2, theta), (theta,))
