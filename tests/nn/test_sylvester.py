import pytest
import torch
from torch import nn

from helpers import assert_close, randn
from skewflow.errors import DtypeError, ShapeError
from skewflow.nn import SylvesterFlow

D = torch.float64


def wild(features, rank, generator):
    """A flow far from the identity."""
    flow = SylvesterFlow(features, rank, dtype=D)
    with torch.no_grad():
        for p in (flow.R, flow.R_tilde, flow.bias):
            p.copy_(2 * randn(*p.shape, generator=generator))
    return flow


@pytest.mark.parametrize("features, rank", [(1, 1), (5, 1), (6, 3), (4, 4)])
def test_log_det_is_that_of_autograds_jacobian(features, rank, generator):
    flow = wild(features, rank, generator)
    for z in randn(8, features, generator=generator):
        J = torch.autograd.functional.jacobian(lambda z: flow(z)[0], z)
        sign, log_det = torch.linalg.slogdet(J)
        assert sign > 0
        # The determinant of a d x d matrix loses some digits that the formula keeps.
        assert_close("log_det", log_det, flow(z)[1], factor=10)


def test_the_step_is_the_formula_with_upper_triangles(generator):
    flow = wild(6, 3, generator)
    z = randn(6, generator=generator)
    R, R_tilde = (A.detach().clone() for A in (flow.R, flow.R_tilde))
    for A in (R, R_tilde):
        A[torch.tril_indices(3, 3, -1).unbind()] = 0
        for i in range(3):
            A[i, i] = A[i, i].tanh()
    moved = flow.Q @ (R @ (R_tilde @ (flow.Q.mT @ z) + flow.bias).tanh())
    assert_close("step", z + moved, flow(z)[0])


def test_batches_are_points_one_by_one(generator):
    flow = wild(5, 2, generator)
    z = randn(2, 3, 5, generator=generator)
    image, log_det = flow(z)
    assert log_det.shape == (2, 3)
    assert_close("image", flow(z[1, 2])[0], image[1, 2])
    assert_close("log_det", flow(z[1, 2])[1], log_det[1, 2])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_determinant_stays_positive_where_tanh_rounds_to_one(dtype):
    flow = SylvesterFlow(4, 4, dtype=dtype)
    nn.init.constant_(flow.R, 100.0)
    nn.init.constant_(flow.R_tilde, -100.0)
    _, log_det = flow(torch.zeros(1, 4, dtype=dtype))
    assert torch.isfinite(log_det).all()


@pytest.mark.bad_input
def test_what_does_not_fit_is_refused():
    for rank in (0, 5):
        with pytest.raises(ShapeError, match=f"between 1 and features=4: got {rank}"):
            SylvesterFlow(4, rank)
    with pytest.raises(ShapeError, match=r"`z` must have the shape \(\*batch, 4\): got \(2, 3\)"):
        SylvesterFlow(4, 2)(torch.zeros(2, 3))
    with pytest.raises(DtypeError, match="`z` must be a real floating-point"):
        SylvesterFlow(4, 2)(torch.zeros(2, 4, dtype=torch.int64))
