"""The flows of the autoencoder against autograd's Jacobians, and their orthogonal factors."""

from dataclasses import replace
from typing import get_args

import pytest
import torch

from helpers import assert_close, randn
from skewflow_lab.data import load_digits_part
from skewflow_lab.paper.vae.experiment import Vae
from skewflow_lab.paper.vae.posteriors import Method, made_orthogonal, make_flows
from skewflow_lab.paper.vae.training import Training
from skewflow_lab.runs.files import RunError

D = torch.float64


@pytest.mark.parametrize("method", get_args(Method))
def test_log_det_is_that_of_autograds_jacobian(method, generator):
    torch.manual_seed(0)
    flows = make_flows(method, d=5, rank=3, context=4, width=12, num_flows=3).to(D)
    with torch.no_grad():
        for name, p in flows.named_parameters():
            if name.endswith("Q"):
                p.copy_(torch.linalg.qr(p).Q)
            else:
                p.mul_(2)
    h = randn(1, 4, generator=generator)

    def moved(z):
        total = z.new_zeros(1)
        z = z[None]
        for flow in flows:
            z, log_det = flow(z, h)
            total = total + log_det
        return z[0], total[0]

    for z in randn(4, 5, generator=generator):
        J = torch.autograd.functional.jacobian(lambda z: moved(z)[0], z)
        expected = torch.linalg.slogdet(J).logabsdet
        assert_close("log_det", expected, moved(z)[1], factor=100)  # 1e-10
        assert method == "none" or abs(expected) > 1e-3


def test_a_matrix_of_the_encoder_is_made_orthogonal(generator):
    A = randn(4, 9, 5, generator=generator)
    Q = made_orthogonal(A)
    assert_close("Q^T Q", torch.eye(5).expand(4, 5, 5), Q.mT @ Q)
    assert_close("polar", torch.linalg.svd(A).U[..., :5] @ torch.linalg.svd(A).Vh, Q, factor=10)


def test_the_verdict_follows_the_numbers():
    def row(mean, sd=0.1, error=None):
        return {"neg_elbo": {"mean": mean, "sd": sd}, "error": error}

    methods = {
        "none": row(90.0),
        "planar": row(85.1),
        "flowsgd": row(86.0, error=1e-3),
        "flowadam": row(85.0, error=2e-7),
        "householder": row(84.0),
    }
    results = {"epochs": 3, "data": "MNIST", "num_seeds": 2, "methods": methods}
    text = Vae().verdict(results)
    assert "FlowAdam reaches a -ELBO of 85.00" in text and "orthogonal to 2e-07" in text
    assert "no flow 90.00 (5.00 more)" in text and "reflections 84.00 (1.00 less)" in text
    assert "planar 85.10 (no difference beyond the seeds' spread)" in text


def test_a_training_lowers_the_bound_and_keeps_the_factor_orthogonal():
    images = load_digits_part("train").pixels.flatten(1)
    sizes = {"latent": 4, "hidden": 16, "rank": 3, "num_flows": 2}
    for method in ("flowsgd", "flowadam"):
        training = Training(
            images[:400], images[400:500], method=method, **sizes, lr=3e-3, batch=20, warm_up=1,
            seed=0,
        )  # fmt: skip
        before = training.model.flows[0].Q.detach().clone()
        bounds = [training.neg_elbo(), training.epoch()["neg_elbo"]]
        assert bounds[1] < 0.97 * bounds[0]
        assert training.rows[-1]["error"] < 1e-5
        assert not torch.equal(before, training.model.flows[0].Q)
        assert training.neg_log_likelihood(50, 100) < bounds[1]


@pytest.mark.bad_input
def test_what_does_not_fit_is_refused():
    for change, said in (
        ({"rank": 7}, "`rank` must be at most latent=6: got 7"),
        ({"epochs": 0}, "`epochs` must be at least 1: got 0"),
        ({"seeds": ()}, "`seeds` must hold at least one value"),
    ):
        with pytest.raises(RunError, match=said):
            Vae().cells(replace(Vae.presets["ci"], **change))
