"""The flows of the autoencoder against autograd's Jacobians, and their orthogonal factors."""

from dataclasses import replace
from typing import get_args

import pytest
import torch

from helpers import assert_close, randn
from skewflow_lab.data import load_digits_part
from skewflow_lab.paper.vae.experiment import Vae
from skewflow_lab.paper.vae.posteriors import Method, made_orthogonal, make_flows
from skewflow_lab.paper.vae.training import Autoencoder, Training
from skewflow_lab.runs.files import RunError

D = torch.float64


@pytest.mark.parametrize("method", get_args(Method))
def test_log_det_is_that_of_autograds_jacobian(method, generator):
    torch.manual_seed(0)
    flows = make_flows(method, d=5, rank=3, context=4, width=12, num_flows=3, num_planar=4).to(D)
    with torch.no_grad():
        for name, p in flows.named_parameters():
            if name.endswith("Q"):
                p.copy_(torch.linalg.qr(p).Q)
            else:
                p.mul_(5)
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
    assert "FlowSGD 86.00 (1.00 more)" in text


def tiny(method, images, **settings):
    sizes = {"latent": 4, "hidden": 16, "rank": 3, "num_flows": 2, "num_planar": 2}
    schedule = {"batch": 20, "epochs": 4, "warm_up": 2, "seed": 0, "lr": 1e-3, **settings}
    return Training(images[:400], images[400:500], method=method, **sizes, **schedule)


@pytest.mark.parametrize("method", get_args(Method))
def test_a_stopped_training_goes_on_to_the_same_bits(method, tmp_path):
    images = load_digits_part("train").pixels.flatten(1)
    unbroken, stopped, resumed = (tiny(method, images[:500]) for _ in range(3))
    for _ in range(3):
        unbroken.epoch()
    stopped.epoch()
    torch.save(stopped.state_dict(), tmp_path / "state.pt")
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for _ in range(2):
        resumed.epoch()
    assert resumed.rows == unbroken.rows
    for name, p in unbroken.model.state_dict().items():
        assert torch.equal(p, resumed.model.state_dict()[name]), name


@pytest.mark.parametrize("method", get_args(Method))
def test_the_refined_posterior_is_a_density(method, generator):
    # If q is one, the mean of p(z) / q(z | x) over q is 1, whatever flow made it.
    torch.manual_seed(0)
    sizes = {"latent": 3, "hidden": 8, "rank": 2, "num_flows": 2, "num_planar": 3}
    model = Autoencoder(6, method=method, **sizes).to(D)
    with torch.no_grad():
        for flow in model.flows:
            for name, p in flow.named_parameters():
                if not name.endswith("Q"):
                    p.mul_(5)
        model.gaussian.bias[3:] += 2  # q is wider than p, so that the ratio has a variance
        x = torch.rand(1, 6, generator=generator, dtype=D).expand(50_000, -1)
        ratio = torch.exp(-model.terms(x, generator)[1])
    error = ratio.std() / len(ratio) ** 0.5
    assert error < 0.02
    assert abs(ratio.mean() - 1) < 4 * error  # false alarm: once in 16,000


def test_a_single_importance_sample_gives_the_bound_and_many_are_tighter():
    images = load_digits_part("train").pixels.flatten(1)
    training = tiny("flowsgd", images[:500])
    training.epoch()
    estimates = [training.neg_log_likelihood(n, 100) for n in (1, 10, 300)]
    bounds = [training.neg_elbo(number) for number in range(40)]
    noise = torch.tensor(bounds).std()
    assert abs(estimates[0] - sum(bounds) / len(bounds)) < 4 * noise
    assert estimates[0] > estimates[1] > estimates[2]


def test_the_learning_rate_of_all_falls_to_zero_in_the_second_half():
    images = load_digits_part("train").pixels.flatten(1)
    training = tiny("flowsgd", images[:500])
    rates = []
    for _ in range(4):
        training.epoch()
        rates.append({g["lr"] for o in training.optimizers for g in o.param_groups})
    assert rates == [{1e-3}, {1e-3}, {1e-3}, {5e-4}]


def test_a_training_lowers_the_bound_and_keeps_the_factor_orthogonal():
    images = load_digits_part("train").pixels.flatten(1)
    for method in ("flowsgd", "flowadam"):
        training = tiny(method, images, lr=3e-3)
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
