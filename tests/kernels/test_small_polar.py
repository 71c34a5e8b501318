"""Exact steps of small weights by one CUDA launch: those of `polar_step` for any length."""

from dataclasses import replace

import pytest
import torch

from helpers import assert_close, half, randn, with_norm
from skewflow.geometry import omega, orthogonality_error
from skewflow.kernels.exact_polar import limits, polar_step
from skewflow.kernels.exact_polar import reference as definition
from skewflow.kernels.update import direction

pytest.importorskip("triton")

from skewflow.kernels.exact_polar._small_triton import plan_small_polar
from triton_cases import Case

pytestmark = pytest.mark.usefixtures("poisoned_memory")

SHAPES = [(1, 1), (3, 2), (17, 16), (40, 33), (64, 64), (150, 20)]
RATES = [0.0, 1e-6, 1e-3, 0.1, 1.0, 1e3, 1e30, 1e300]


def reference(X, G, M, step, update):
    """On the CPU, where everything is plain torch."""
    M = None if M is None else M.cpu()
    D, new = direction(G.cpu().to(X.dtype), M, update)
    return polar_step(X.cpu(), D, update.lr, tangent=new is not None)


def moved(case, **more):
    """What a step makes of copies of a case's points and momenta."""
    Xs, Ms = case.Xs, case.Ms
    case.Xs = [X.clone() for X in Xs]
    case.Ms = None if Ms is None else [M.clone() for M in Ms]
    plan_small_polar(case.operands(**more), case.update)(case.update)
    found = [X.cpu() for X in case.Xs], None if Ms is None else [M.cpu() for M in case.Ms]
    case.Xs, case.Ms = Xs, Ms
    return found


@pytest.mark.parametrize("shape, momentum, columns", half(SHAPES, [0.0, 0.9], [False, True]))
def test_steps_are_those_of_the_reference(shape, momentum, columns, generator, device):
    case = Case(*shape, generator, device, n=2, num=3, columns=columns, momentum=momentum)
    case.check(plan_small_polar, reference, steps=(0, 1))
    assert not case.flags.any()
    k = case.Xs[0].shape[-1]
    assert max(float(orthogonality_error(X).max()) for X in case.Xs) < 5e-7 * k**0.5


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_learning_rate_keeps_the_points_and_momenta_of_float64(shape, generator, device):
    case = Case(*shape, generator, device, n=5, momentum=0.9)
    sizes = torch.tensor([0.0, 1e-38, 1e-2, 1.0, 1e15], device=device)[:, None, None]
    case.Gs[0] *= sizes
    case.Ms[0] *= sizes
    X, G, M = (t.double().cpu() for t in (case.Xs[0], case.Gs[0], case.Ms[0]))
    for lr in RATES:
        case.update = replace(case.update, lr=lr)
        (Y,), (T,) = moved(case)
        assert orthogonality_error(Y).max() / shape[1] ** 0.5 < 1e-6
        expected, tangent = polar_step(X, 0.9 * M + G, lr, tangent=True)
        # Cut steps have the directions of their D, and the smallest have lost digits to denormals.
        for place, size in enumerate(sizes.flatten().tolist()):
            factor = 10.0 if place != 1 or lr < 1e30 else 1e3
            assert_close("Y", expected[place], Y[place], torch.float32, factor=factor)
            unit = max(size, 1e-30)
            assert_close("T", tangent[place] / unit, T[place].double() / unit, torch.float32)


@pytest.mark.parametrize("shape", [(2, 1), (6, 6), (40, 33), (50, 7)], ids=str)
def test_the_nearest_point_is_the_projection_whatever_the_norm(shape, generator, device):
    norms = [0.0, 1e-4, 0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 2.5]  # one term, four, one round, two
    case = Case(*shape, generator, device, n=len(norms))
    case.update = replace(case.update, lr=1.0)
    X = case.Xs[0].double().cpu()
    D = torch.stack([with_norm(randn(*shape, generator=generator), 1.0) for _ in norms])
    turn = torch.linalg.matrix_norm(omega(X, D), 2)
    D *= (torch.tensor(norms, dtype=torch.float64) / turn)[:, None, None]
    case.Gs[0].copy_(D)
    (Y,), _ = moved(case)
    for expected, Y_b in zip(definition.polar_step(X, D, 1.0), Y, strict=True):
        assert_close("Y", expected, Y_b, torch.float32)


@pytest.mark.parametrize("lr", [1e-3, 0.3, 1e3])
def test_a_step_makes_good_what_the_point_had_lost(lr, generator, device):
    case = Case(30, 20, generator, device)
    case.update = replace(case.update, lr=lr)
    case.Xs[0] += 1e-5 * randn(30, 20, generator=generator).to(case.Xs[0])
    assert orthogonality_error(case.Xs[0]).max() > 1e-4
    (Y,), _ = moved(case)
    assert orthogonality_error(Y).max() / 20**0.5 < 1e-6


@pytest.mark.parametrize("lr", [1e-2, 1.0, 1e3, 1e8])
def test_a_direction_that_is_normal_moves_nothing(lr, generator, device):
    case = Case(40, 33, generator, device, momentum=0.9)
    case.update = replace(case.update, lr=lr)
    N = randn(33, 33, generator=generator)
    case.Gs[0].copy_(case.Xs[0].cpu().double() @ (N + N.mT))
    case.Ms[0].zero_()
    (Y,), (T,) = moved(case)
    assert orthogonality_error(Y).max() / 33**0.5 < 1e-6
    # Of the gradient rounding is left, and a step along it as long as the gradient allows.
    assert (Y - case.Xs[0].cpu()).abs().max() < 1e-6 * max(1.0, min(1e2 * lr, limits.LONGEST))
    assert T.abs().max() < 1e-6 * case.Gs[0].abs().max() * 10


def test_ascent_goes_the_other_way(generator, device):
    case = Case(17, 5, generator, device, momentum=0.9)
    case.Ms[0].zero_()
    down, M = moved(case)
    case.update = replace(case.update, maximize=True)
    case.Gs[0].neg_()
    up, N = moved(case)
    assert torch.equal(up[0], down[0]) and torch.equal(M[0], N[0])


@pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value) encountered"
)  # the interpreter's NumPy
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_a_spoilt_matrix_stays_and_is_reported(bad, generator, device):
    case = Case(17, 5, generator, device, n=2, num=3, momentum=0.9)
    case.Gs[1][1, 16, 4] = bad
    Xs, Ms = moved(case)
    assert case.flags.tolist() == [1, 0, 1, 0]
    for p, b in [(p, b) for p in range(3) for b in range(2)]:
        stays = (p, b) == (1, 1)
        assert torch.equal(Xs[p][b], case.Xs[p][b].cpu()) == stays
        assert torch.equal(Ms[p][b], case.Ms[p][b].cpu()) == stays
        assert Xs[p][b].isfinite().all() and Ms[p][b].isfinite().all()


@pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value) encountered"
)  # the interpreter's NumPy
@pytest.mark.parametrize("spoil", [torch.nan, 1e30])
def test_a_point_that_is_none_stays_and_is_reported(spoil, generator, device):
    case = Case(17, 5, generator, device, num=2, momentum=0.9)
    case.Xs[0][0, 3, 2] = spoil
    Xs, _ = moved(case)
    assert case.flags.tolist() == [1, 1, 0]
    assert torch.equal(Xs[0].nan_to_num(7.0), case.Xs[0].cpu().nan_to_num(7.0))
    assert orthogonality_error(Xs[1]).max() < 1e-6


def test_parameters_that_are_not_live_stay_as_they_are(generator, device):
    case = Case(17, 5, generator, device, num=3, momentum=0.9)
    case.Gs[1].fill_(torch.nan)
    Xs, Ms = moved(case, live=torch.tensor([1, 0, 1], dtype=torch.int32, device=device))
    assert [torch.equal(X, Y.cpu()) for X, Y in zip(Xs, case.Xs, strict=True)] == [
        False, True, False,
    ]  # fmt: skip
    assert torch.equal(Ms[1], case.Ms[1].cpu())
    assert not case.flags.any()


@pytest.mark.parametrize("lr", [1e-3, 1e3])
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_low_precision_copies_receive_the_rounded_points(low, lr, generator, device):
    case = Case(20, 9, generator, device, num=2, grad=low, low=low, momentum=0.9)
    case.update = replace(case.update, lr=lr)
    case.check(plan_small_polar, reference, steps=(0,))


def test_other_tiles_give_the_same_step(generator, device):
    case = Case(150, 20, generator, device, momentum=0.9)
    (Y,), (T,) = moved(case)
    plan_small_polar(case.operands(), case.update, block_d=16, warps=8)(case.update)
    assert_close("Y", Y, case.Xs[0].cpu(), torch.float32, factor=0.1)
    assert_close("T", T, case.Ms[0].cpu(), torch.float32)


@pytest.mark.parametrize("option", [{"dtype": torch.float64}, {"nesterov": True}], ids=str)
def test_what_the_kernel_cannot_do_is_refused(option, generator, device):
    case = Case(5, 3, generator, device, momentum=0.9, **option)
    with pytest.raises(ValueError, match="needs float32 points and no Nesterov momentum"):
        plan_small_polar(case.operands(), case.update)
