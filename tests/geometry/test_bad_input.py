"""Every wrong argument raises its class, with the rule, the value and the way out."""

import math
import re

import pytest
import torch

from skewflow import geometry as geo
from skewflow.errors import (
    DtypeError,
    NonFiniteError,
    NotOnManifoldError,
    ShapeError,
    SkewflowError,
)

pytestmark = pytest.mark.bad_input

X = torch.eye(4, 3)
Z = torch.zeros(4, 3)
Q = torch.eye(4)
S = torch.zeros(4, 4)
K = torch.zeros(3, 3)
B = torch.zeros(1, 3)

# (name of the argument, a good value, the call with that argument left open)
ARGUMENTS = {
    "cayley": ("A", S, lambda A: geo.cayley(A)),
    "check_skew": ("A", S, lambda A: geo.check_skew(A)),
    "check_special": ("X", Q, lambda X: geo.check_special(X)),
    "check_stiefel": ("X", X, lambda X: geo.check_stiefel(X)),
    "check_tangent-X": ("X", X, lambda X: geo.check_tangent(X, Z)),
    "check_tangent-Z": ("Z", Z, lambda Z: geo.check_tangent(X, Z)),
    "complement": ("X", X, lambda X: geo.complement(X)),
    "curve-X": ("X", X, lambda X: geo.curve(X, S)),
    "curve-generator": ("generator", S, lambda S: geo.curve(X, S)),
    "expm": ("A", S, lambda A: geo.expm(A)),
    "geodesic-X": ("X", X, lambda X: geo.geodesic(X, Z)),
    "geodesic-Z": ("Z", Z, lambda Z: geo.geodesic(X, Z)),
    "inner-X": ("X", X, lambda X: geo.inner(X, Z, Z)),
    "inner-Z1": ("Z1", Z, lambda Z1: geo.inner(X, Z1, Z)),
    "inner-Z2": ("Z2", Z, lambda Z2: geo.inner(X, Z, Z2)),
    "lift-X": ("X", X, lambda X: geo.lift(X, Z)),
    "lift-Z": ("Z", Z, lambda Z: geo.lift(X, Z)),
    "omega-X": ("X", X, lambda X: geo.omega(X, Z)),
    "omega-G": ("G", Z, lambda G: geo.omega(X, G)),
    "orthogonality_error": ("X", X, lambda X: geo.orthogonality_error(X)),
    "project": ("X", X, lambda X: geo.project(X)),
    "riemannian_gradient-X": ("X", X, lambda X: geo.riemannian_gradient(X, Z)),
    "riemannian_gradient-G": ("G", Z, lambda G: geo.riemannian_gradient(X, G)),
    "riemannian_gradient-euclidean-G": (
        "G",
        Z,
        lambda G: geo.riemannian_gradient(X, G, "euclidean"),
    ),
    "skew": ("A", S, lambda A: geo.skew(A)),
    "tangent_from-X": ("X", X, lambda X: geo.tangent_from(X, K, B)),
    "tangent_from-A": ("A", K, lambda A: geo.tangent_from(X, A, B)),
    "tangent_from-B": ("B", B, lambda B: geo.tangent_from(X, K, B)),
    "tangent_project-X": ("X", X, lambda X: geo.tangent_project(X, Z)),
    "tangent_project-Z": ("Z", Z, lambda Z: geo.tangent_project(X, Z)),
    "taylor": ("A", S, lambda A: geo.taylor(A, terms=2)),
}

# Arguments that must be tall, those that must be square, and those that must fit `X`.
TALL = [name for name, (argument, _, _) in ARGUMENTS.items() if argument == "X"]
TALL.remove("check_special")
SQUARE = ["cayley", "check_skew", "check_special", "expm", "skew", "taylor"]
FITTING = [name for name in ARGUMENTS if name not in TALL and name not in SQUARE]


@pytest.fixture(params=ARGUMENTS)
def argument(request):
    return ARGUMENTS[request.param]


def with_entry(A, value):
    A = A.clone()
    A[0, 0] = value
    return A


def test_the_good_values_are_good(argument):
    _, good, call = argument
    call(good)


def test_what_is_no_tensor_is_refused(argument):
    name, _, call = argument
    for value in ([[1.0, 0.0]], 3.0, "X"):
        got = type(value).__name__
        message = rf"`{name}` must be a torch\.Tensor: got {got}\. Call torch\.as_tensor"
        with pytest.raises(DtypeError, match=message):
            call(value)


def test_tensors_that_are_not_real_floats_are_refused(argument):
    name, good, call = argument
    for dtype in (torch.int64, torch.bool, torch.complex64):
        message = rf"`{name}` must be a real floating-point tensor: got {dtype}\. Convert it first"
        with pytest.raises(DtypeError, match=message):
            call(good.to(dtype))


def test_non_finite_entries_are_refused_and_counted(argument):
    name, good, call = argument
    message = rf"`{name}` must be finite: 1 of its {good.numel()} entries .*Check for an overflow"
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(NonFiniteError, match=message):
            call(with_entry(good, value))


def test_scalars_and_vectors_are_refused(argument):
    name, _, call = argument
    for shape in ((), (3,)):
        got = re.escape(str(shape))
        message = rf"`{name}` must be a matrix .*: got shape {got}\. Add the missing"
        with pytest.raises(ShapeError, match=message):
            call(torch.zeros(shape))


def test_empty_batches_are_refused(argument):
    name, good, call = argument
    message = rf"`{name}` must not be empty: got shape \(0, .*Drop the empty batch"
    with pytest.raises(ShapeError, match=message):
        call(good.expand(0, *good.shape))


@pytest.mark.parametrize("case", TALL)
def test_points_with_more_columns_than_rows_are_refused(case):
    _, _, call = ARGUMENTS[case]
    message = r"`X` must have d >= k .*: got d=3, k=4\. For orthonormal rows pass `X\.mT`"
    with pytest.raises(ShapeError, match=message):
        call(X.mT)


@pytest.mark.parametrize("case", SQUARE)
def test_matrices_that_are_not_square_are_refused(case):
    name, _, call = ARGUMENTS[case]
    with pytest.raises(ShapeError, match=rf"`{name}` must be square: got shape \(4, 3\)"):
        call(X)


@pytest.mark.parametrize("case", FITTING)
def test_shapes_that_do_not_fit_x_are_refused_with_both_shapes(case):
    name, good, call = ARGUMENTS[case]
    for value in (torch.zeros(5, 5), good.expand(2, *good.shape)):
        shape = re.escape(str(tuple(value.shape)))
        with pytest.raises(
            ShapeError, match=rf"`{name}` must have .*shape .*`X`.*{shape}"
        ) as caught:
            call(value)
        assert "(4, 3)" in str(caught.value)


@pytest.mark.parametrize("case", FITTING)
def test_dtypes_that_do_not_fit_x_are_refused_with_both_dtypes(case):
    name, good, call = ARGUMENTS[case]
    message = (
        rf"`{name}` must have the dtype and device of `X`: got torch\.float64 on cpu "
        r"and torch\.float32 on cpu\. Move one with `\.to"
    )
    with pytest.raises(DtypeError, match=message):
        call(good.double())


def test_generator_of_the_wrong_size_is_refused_with_the_way_out():
    message = (
        r"`generator` must have shape \(4, 4\) .*`X` of shape \(4, 3\): got \(3, 3\)\. Reshape it"
    )
    with pytest.raises(ShapeError, match=message):
        geo.curve(X, K)


@pytest.mark.parametrize("side", ["up", "LEFT", None])
def test_unknown_sides_are_refused(side):
    with pytest.raises(ValueError, match=rf"`side` must be one of 'left', 'right': got {side!r}"):
        geo.omega(X, Z, side)


def test_reverse_form_is_refused_when_k_is_less_than_d():
    message = r'`side="right"` .* needs a square X: got d=4, k=3, .*span of X\. Use side="left"'
    with pytest.raises(ShapeError, match=message):
        geo.omega(X, Z, "right")


@pytest.mark.parametrize("metric", ["polar", None])
@pytest.mark.parametrize(
    "call",
    [lambda m: geo.inner(X, Z, Z, m), lambda m: geo.riemannian_gradient(X, Z, m)],
    ids=["inner", "riemannian_gradient"],
)
def test_unknown_metrics_are_refused(call, metric):
    message = rf"`metric` must be one of 'canonical', 'euclidean': got {metric!r}"
    with pytest.raises(ValueError, match=message):
        call(metric)


@pytest.mark.parametrize("d, i, j", [(4, 1, 1), (4, 0, 4), (4, -1, 2), (4, 5, 0), (1, 0, 0)])
@pytest.mark.parametrize(
    "call",
    [geo.basis, lambda d, i, j: geo.givens(d, i, j, 0.1)],
    ids=["basis", "givens"],
)
def test_planes_need_two_different_rows(call, d, i, j):
    message = rf"two different rows in 0\.\.{d - 1}: got i={i}, j={j} for d={d}\. Rows count from 0"
    with pytest.raises(ShapeError, match=message):
        call(d, i, j)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.float8_e4m3fn, "float32"])
@pytest.mark.parametrize(
    "call",
    [
        lambda dtype: geo.basis(3, 0, 1, dtype=dtype),
        lambda dtype: geo.givens(3, 0, 1, 0.1, dtype=dtype),
        lambda dtype: geo.haar(3, dtype=dtype),
    ],
    ids=["basis", "givens", "haar"],
)
def test_new_matrices_are_made_in_real_floating_dtypes_only(call, dtype):
    message = rf"`dtype` must be a real floating dtype: got {dtype}\. Use one of torch\.float64, "
    with pytest.raises(DtypeError, match=message):
        call(dtype)


@pytest.mark.parametrize("theta", [math.nan, math.inf, torch.tensor(math.nan)])
def test_angles_must_be_finite(theta):
    with pytest.raises(NonFiniteError, match=r"`theta` must be finite: .*Check for an overflow"):
        geo.givens(3, 0, 1, theta)


@pytest.mark.parametrize("t", [math.nan, math.inf])
@pytest.mark.parametrize(
    "call",
    [lambda t: geo.curve(X, S, t), lambda t: geo.geodesic(X, Z, t)],
    ids=["curve", "geodesic"],
)
def test_times_must_be_finite(call, t):
    with pytest.raises(
        NonFiniteError, match=rf"`t` must be finite: got {t}\. Check for an overflow"
    ):
        call(t)


@pytest.mark.parametrize("terms", [-1, 2.0, True, None])
def test_a_series_has_a_whole_number_of_terms(terms):
    message = rf"`terms` must be a whole number >= 0: got {terms!r}\. It is the highest power"
    with pytest.raises(ValueError, match=message):
        geo.taylor(S, terms)


@pytest.mark.parametrize("d, k", [(3, 4), (3, 0), (3, -1), (0, None), (-2, None)])
def test_haar_needs_between_one_and_d_columns(d, k):
    message = (
        rf"needs 1 <= k <= d: got d={d}, k={d if k is None else k}\. For orthonormal rows draw"
    )
    with pytest.raises(ShapeError, match=message):
        geo.haar(d, k)


@pytest.mark.parametrize("d, k", [(3, 4), (3, 0), (0, 0)])
def test_dimension_needs_between_one_and_d_columns(d, k):
    message = rf"needs 1 <= k <= d: got d={d}, k={k}\. For orthonormal rows swap"
    with pytest.raises(ShapeError, match=message):
        geo.tangent_dimension(d, k)


def test_special_is_refused_when_k_is_less_than_d():
    message = r"`special=True` needs k = d, a determinant: got d=4, k=3\. .*leave `special` out"
    with pytest.raises(ShapeError, match=message):
        geo.haar(4, 3, special=True)


@pytest.mark.parametrize("batch", [(0,), (2, 0), (-1,), 3, [2]])
def test_haar_batches_are_tuples_of_positive_sizes(batch):
    message = rf"`batch` must be a tuple of sizes >= 1: got {re.escape(repr(batch))}\. Write \(n,\)"
    with pytest.raises(ShapeError, match=message):
        geo.haar(3, batch=batch)


@pytest.mark.parametrize("generator", [0, "seed"])
def test_haar_takes_a_torch_generator_not_a_seed(generator):
    got = type(generator).__name__
    message = rf"`generator` must be a torch\.Generator: got {got}\. Make one with"
    with pytest.raises(TypeError, match=message):
        geo.haar(3, generator=generator)


def test_tangent_vectors_of_the_stiefel_manifold_need_b():
    message = r"`B` must be given for k < d: got None for d=4, k=3\. Pass a matrix \(1, 3\)"
    with pytest.raises(ShapeError, match=message):
        geo.tangent_from(X, K)


@pytest.mark.parametrize("B, got", [(torch.zeros(1, 4), r"\(1, 4\)"), ([0.0], "list")])
def test_tangent_vectors_of_square_matrices_have_no_b(B, got):
    message = rf"`B` must be None on O\(d\), where d=k=4 .*: got {got}\. Leave `B` out"
    with pytest.raises(ShapeError, match=message):
        geo.tangent_from(Q, S, B)


@pytest.mark.parametrize(
    "check, way_out",
    [
        (lambda: geo.check_stiefel(2 * Q), r"geometry\.project\(X\)"),
        (lambda: geo.check_special(Q[[1, 0, 2, 3]]), "Negate one column"),
        (lambda: geo.check_skew(Q), r"geometry\.skew\(A\)"),
        (lambda: geo.check_tangent(Q, Q), r"geometry\.tangent_project\(X, Z\)"),
    ],
    ids=["stiefel", "special", "skew", "tangent"],
)
def test_required_membership_raises_with_the_way_out(check, way_out):
    with pytest.raises(NotOnManifoldError, match=way_out):
        geo.require(check())


@pytest.mark.parametrize(
    "error, builtin",
    [
        (ShapeError, ValueError),
        (DtypeError, TypeError),
        (NonFiniteError, ValueError),
        (NotOnManifoldError, ValueError),
    ],
)
def test_errors_are_also_the_builtin_ones_that_users_catch(error, builtin):
    assert issubclass(error, SkewflowError)
    assert issubclass(error, builtin)
