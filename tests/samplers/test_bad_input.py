import pytest
import torch

from cases import gaussian
from skewflow.errors import (
    BalanceError,
    BlockSizeError,
    FamilyError,
    SamplingError,
    TooLargeError,
    WeightFunctionError,
)
from skewflow.samplers import (
    Balanced,
    HeavyMatchings,
    HRegular,
    Importance,
    Optimal,
    RelabelledRoundRobin,
    RoundRobin,
    Sparsified,
    Uniform,
)
from skewflow.samplers.rejection import reject
from skewflow.tournaments import EdgeWeights, round_robin
from skewflow.tournaments.theory import balanced_tau_ratio, certified_tau, tau_star

pytestmark = pytest.mark.bad_input

SIZED = [Uniform, HRegular, Optimal, Balanced]


@pytest.fixture
def W(generator):
    return EdgeWeights.of(gaussian(6, generator))


@pytest.fixture
def spiked():
    omega = torch.full((8, 8), 0.01, dtype=torch.float64).triu(1)
    omega[0, 1] = 3.0
    return EdgeWeights.of(omega - omega.mT)


@pytest.mark.parametrize("sampler", SIZED)
@pytest.mark.parametrize("s", [1, 0, 7])
def test_a_block_size_below_two_or_above_d_is_refused(sampler, s, W, generator):
    with pytest.raises(BlockSizeError, match=f"between 2 .* d=6 .*block_size={s}"):
        sampler(s).sample(W, generator=generator)
    with pytest.raises(BlockSizeError, match="block_size"):
        sampler(s).law(W)


@pytest.mark.parametrize(
    "sampler",
    [
        Uniform(2),
        HRegular(2),
        HRegular(2, method="reject-1"),
        Optimal(2),
        Balanced(2),
        RoundRobin(),
        RoundRobin(replacement=True),
        RelabelledRoundRobin(),
        HeavyMatchings(),
        Importance(round_robin(6)),
        Sparsified(3),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
@pytest.mark.parametrize("generator_like", [None, 0])
def test_randomness_without_a_generator_is_refused(sampler, generator_like, W):
    with pytest.raises(TypeError, match=r"must be a torch.Generator.*manual_seed"):
        sampler.sample(W, generator=generator_like)


@pytest.mark.parametrize("sampler", SIZED)
def test_the_law_of_a_large_matrix_is_refused(sampler, generator):
    W = EdgeWeights.of(gaussian(40, generator))
    with pytest.raises(TooLargeError, match="enumeration is for small d.*draw with `sample`"):
        sampler(2).law(W)
    with pytest.raises(TooLargeError, match="multisets of 9 of 780 edges"):
        Sparsified(9).law(W)


def test_an_h_that_is_not_even_is_refused_when_the_sampler_is_made():
    makers = (
        HRegular,
        Sparsified,
        lambda s, h: HeavyMatchings(by=h),
        lambda s, h: Importance(round_robin(6), h),
    )
    for make in makers:
        with pytest.raises(WeightFunctionError, match="must be even"):
            make(2, lambda w: w.clamp(min=0))


def test_version_ii_refuses_an_omega_that_is_not_that_balanced(spiked, generator):
    sampler = HRegular(2, method="reject-2", alpha=0.8, beta=0.8)
    with pytest.raises(BalanceError) as error:
        sampler.sample(spiked, generator=generator)
    message = str(error.value)
    for part in ("q_T = ", "alpha=0.8, beta=0.8", "certified", "lower them", "method='edge'"):
        assert part in message
    # The stated q is that of a partition there is, and the bound lies above it.
    stated = float(message.split("q_T = ")[1].split(",")[0])
    tau = balanced_tau_ratio(8, 2, 0.8, 0.8) * spiked.h_norm("abs")
    assert stated == pytest.approx(tau_star(spiked, 2) / tau, rel=1e-2) and stated > 1.5


def test_a_claim_that_cannot_be_certified_is_refused_even_if_no_q_exceeds_one(generator):
    # tau lies between tau* and the certified bound: no draw would be biased, but who knows.
    W = EdgeWeights.of(gaussian(6, generator))
    top, certified = tau_star(W, 2), certified_tau(W, 2)
    assert top < certified
    product = 1 / (6 * (top + certified) / 2 / W.h_norm("abs"))
    sampler = HRegular(2, method="reject-2", alpha=product, beta=1.0)
    with pytest.raises(BalanceError, match=r"q_T = 0\.9\d*, and the certified bound on q_T is 1\."):
        sampler.sample(W, generator=generator)


def test_version_ii_without_alpha_and_beta_uses_the_certified_bound(spiked, generator):
    t = HRegular(2, method="reject-2").sample(spiked, generator=generator)
    assert t.trials >= 1


def test_a_q_above_one_is_never_clipped(W, generator):
    with pytest.raises(BalanceError, match="may exceed 1"):
        for _ in range(100):
            reject(W, 2, "abs", tau=1e-3, rho=1.0, generator=generator, why="a test")


def test_rejection_gives_up_with_the_numbers(W, generator, monkeypatch):
    from skewflow.samplers import rejection

    monkeypatch.setattr(rejection, "PATIENCE", 3)
    with pytest.raises(SamplingError, match=r"in 15 trials, where about 5 were expected from test"):
        reject(W, 2, "abs", tau=1e30, rho=1.0, generator=generator, why="test")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"alpha": 0.5}, "go together: got alpha=0.5, beta=None"),
        ({"alpha": 0.5, "beta": 0.5}, "belong to version II: got method='edge'"),
        ({"method": "edges"}, "`method` must be one of 'edge', 'reject-1', 'reject-2'"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        HRegular(2, **options)


@pytest.mark.parametrize("alpha, beta", [(0.0, 0.5), (0.5, 1.5), (-1.0, 0.5)])
def test_alpha_and_beta_lie_between_zero_and_one(alpha, beta, W, generator):
    sampler = HRegular(2, method="reject-2", alpha=alpha, beta=beta)
    with pytest.raises(ValueError, match=r"`alpha` and `beta` must lie in \(0, 1\]"):
        sampler.sample(W, generator=generator)


@pytest.mark.parametrize("sampler", [RoundRobin(), RelabelledRoundRobin()])
def test_a_sweep_belongs_to_one_matrix(sampler, W, generator):
    sampler.sample(W, generator=generator)
    other = EdgeWeights.of(gaussian(7, generator))
    with pytest.raises(SamplingError, match="sweep over d=6 rows: got d=7. Use one sampler"):
        sampler.sample(other, generator=generator)


def test_a_family_of_other_rows_is_refused(W, generator):
    with pytest.raises(FamilyError, match="d=6 rows.*got one of 8 rows"):
        Importance(round_robin(8)).sample(W, generator=generator)


@pytest.mark.parametrize("sampler", [Uniform(2), RoundRobin(), HeavyMatchings()], ids=str)
def test_a_state_of_another_kind_is_refused(sampler):
    with pytest.raises(ValueError, match=r"keys.*unknown"):
        sampler.load_state_dict({"unknown": 1})


@pytest.mark.parametrize("value", [0, -1, 2.0, "3", None, True])
def test_counts_must_be_whole_and_at_least_one(value):
    makers = {
        "num_samples": lambda: Optimal(2, num_samples=value),
        "num_edges": lambda: Sparsified(value),
        "refresh": lambda: HeavyMatchings(refresh=value),
    }
    for name, make in makers.items():
        with pytest.raises(ValueError, match=f"`{name}` must be a whole number of at least 1"):
            make()


@pytest.mark.parametrize("sampler", [Uniform(2), HRegular(2), RoundRobin(), Sparsified(2)], ids=str)
def test_a_matrix_in_place_of_its_weights_is_refused(sampler, generator):
    with pytest.raises(TypeError, match=r"must be an EdgeWeights: got Tensor.*EdgeWeights\(X, G\)"):
        sampler.sample(torch.eye(4), generator=generator)


def test_a_list_in_place_of_a_family_is_refused():
    with pytest.raises(FamilyError, match=r"must be a Family: got list.*Family\(partitions\)"):
        Importance(list(round_robin(6)))


def test_a_failed_draw_leaves_the_state_alone(W, generator):
    sampler = HeavyMatchings()
    with pytest.raises(TypeError):
        sampler.sample(W, generator=None)
    assert sampler.state_dict() == HeavyMatchings().state_dict()
    sampler.sample(W, generator=generator)
    with pytest.raises(SamplingError, match="matchings of d=6 rows: got d=7. Use one sampler"):
        sampler.sample(EdgeWeights.of(gaussian(7, generator)), generator=generator)
    sweep = RoundRobin()
    sweep.sample(W, generator=generator)
    with pytest.raises(TypeError, match=r"must be a torch.Generator"):
        sweep.sample(W, generator=None)


def test_sweeps_refuse_the_state_of_another_sampler(W, generator):
    sampler = RoundRobin()
    sampler.sample(W, generator=generator)
    state = sampler.state_dict()
    for other in (RelabelledRoundRobin(), RoundRobin(3)):
        with pytest.raises(ValueError, match=r"this sampler is a .*round robin of blocks of"):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match="'order' must be a permutation"):
        sampler.load_state_dict(state | {"order": torch.zeros(5, dtype=torch.int64)})
    with pytest.raises(ValueError, match="has the keys"):
        sampler.load_state_dict(None)


def test_a_custom_h_that_vanishes_on_the_weights_is_refused_when_met(generator):
    def hole(w):
        return torch.where((w.abs() > 1.2) & (w.abs() < 1.4), 0 * w, w.abs())

    omega = torch.zeros(4, 4, dtype=torch.float64)
    omega[0, 1], omega[1, 2] = 1.3, 2.0
    W = EdgeWeights.of(omega - omega.mT)
    with pytest.raises(WeightFunctionError, match=r"positive away from zero.*h\(-?1.3\) <= 0"):
        HRegular(2, hole).sample(W, generator=generator)


def test_an_h_that_is_not_entrywise_is_refused():
    with pytest.raises(WeightFunctionError, match="each entry independently"):
        HRegular(2, lambda w: w.abs() / (1e-12 + w.abs().sum()))


def test_the_certified_bound_never_exceeds_version_i(spiked):
    assert certified_tau(spiked, 2) <= spiked.h_norm("abs")
