"""`minimize`: finds known optima, goes on where it was stopped, and refuses what is wrong."""

import pytest
import torch

from es import objectives
from helpers import random_stiefel
from skewflow._files import save_checked
from skewflow.errors import CheckpointError, NonFiniteReturnError, NotOnManifoldError
from skewflow.es import minimize
from skewflow.geometry import orthogonality_error
from skewflow.optim import FlowSGD
from skewflow.samplers import HRegular

START = {"x": torch.tensor([2.0, -1.0]), "y": torch.tensor(0.5)}


def bowl(params):
    return (params["x"] - 1).square().sum() + (params["y"] + params["x"][0]).square()


@pytest.mark.parametrize("shaping", ["ars", "ranks", "plain"])
def test_a_quadratic_is_minimised(shaping):
    result = minimize(bowl, START, shaping=shaping, num_directions=8, generations=150)
    assert result.score < 0.02 and len(result.records) == 150
    assert result.records[0].score == float(bowl(START))
    assert START["x"].tolist() == [2.0, -1.0]  # the start is not changed


def test_maximising_is_minimising_the_negative():
    up = minimize(lambda p: -bowl(p), START, maximize=True, generations=5)
    down = minimize(bowl, START, generations=5)
    assert torch.equal(up.params["x"], down.params["x"])


@pytest.mark.parametrize("perturbation", ["ambient", "geodesic"])
def test_the_subspace_of_the_least_eigenvalues_is_found(generator, perturbation):
    A = torch.diag(torch.tensor([1.0, 2.0, 5.0, 6.0, 7.0, 8.0]))
    f = lambda p: (p["V"].mT @ A @ p["V"]).trace()  # noqa: E731

    def optimizers(orthogonal, rest):
        assert not rest
        return [FlowSGD(orthogonal, lr=0.01, block_size=2, sampler=HRegular(2))]

    start = {"V": random_stiefel(6, 2, generator=generator, dtype=torch.float32)}
    found = minimize(
        f,
        start,
        orthogonal=["V"],
        optimizers=optimizers,
        shaping="plain",
        perturbation=perturbation,
        generations=100,
        num_directions=16,
    )
    assert found.score < 3.1 < float(f(start))  # the least possible is 1 + 2
    assert orthogonality_error(found.params["V"]) < 1e-5


def stopped(after):
    def stop(record):
        if record.generation == after:
            raise KeyboardInterrupt

    return stop


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path, generator):
    start = {"W": random_stiefel(5, generator=generator, dtype=torch.float32), **START}
    settings = {"orthogonal": ["W"], "generations": 6, "num_directions": 4, "top": 3}
    whole = minimize(objectives.sphere, start, **settings)
    path = tmp_path / "new" / "run.pt"
    for after in (0, 3):
        with pytest.raises(KeyboardInterrupt):
            minimize(
                objectives.sphere,
                start,
                **settings,
                checkpoint=path,
                on_generation=stopped(after),
            )
    end = minimize(objectives.sphere, start, **settings, checkpoint=path, workers=1)
    assert end.records == whole.records and end.score == whole.score
    assert all(torch.equal(p, whole.params[name]) for name, p in end.params.items())
    longer = minimize(objectives.sphere, start, **{**settings, "generations": 7}, checkpoint=path)
    assert longer.records[:6] == whole.records


@pytest.mark.bad_input
def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = tmp_path / "run.pt"
    minimize(bowl, START, generations=1, checkpoint=path)
    with pytest.raises(CheckpointError, match=r"differ in sigma \(0.05 there, 0.1 here\)"):
        minimize(bowl, START, generations=1, sigma=0.1, checkpoint=path)
    with pytest.raises(CheckpointError, match=r"differ in lr \(0.05 there, 5.0 here\). Use"):
        minimize(bowl, START, generations=2, lr=5.0, checkpoint=path)
    with pytest.raises(
        CheckpointError, match=r"cannot write .*: File exists. It still holds the previous"
    ):
        minimize(bowl, START, generations=1, checkpoint=path / "below")


@pytest.mark.bad_input
def test_every_damage_to_a_checkpoint_is_noticed(tmp_path):
    path = tmp_path / "run.pt"
    minimize(bowl, START, generations=1, checkpoint=path)
    whole = path.read_bytes()
    places = range(0, len(whole), len(whole) // 120)
    flipped = (whole[:n] + bytes([whole[n] ^ 4]) + whole[n + 1 :] for n in places)
    for damaged in (*flipped, whole[:100], b""):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="run.pt must be .* Restore it, or remove it"):
            minimize(bowl, START, generations=2, checkpoint=path)


@pytest.mark.bad_input
@pytest.mark.parametrize("entry", ["settings", "strategy", "records"])
def test_a_checkpoint_without_one_of_its_entries_is_refused(tmp_path, entry):
    path = tmp_path / "run.pt"
    minimize(bowl, START, generations=1, checkpoint=path)
    whole = torch.load(path, weights_only=True)
    del whole[entry]
    save_checked(path, whole)
    with pytest.raises(
        CheckpointError, match=f"it lacks an entry .*{entry}.*Restore it, or remove"
    ):
        minimize(bowl, START, generations=2, checkpoint=path)


@pytest.mark.bad_input
def test_a_checkpoint_goes_on_with_its_own_orthogonal_parameters_only(tmp_path):
    start, path = {"V": torch.eye(2), "W": torch.eye(2)}, tmp_path / "run.pt"
    adam = lambda marked, rest: [torch.optim.Adam([p for _, p in marked + rest], 0.1)]  # noqa: E731
    options = {"optimizers": adam, "checkpoint": path, "generations": 1}
    minimize(objectives.sphere, start, orthogonal=["V"], **options)
    with pytest.raises(CheckpointError, match=r"orthogonal \(\['V'\] there, \['W'\] here\)"):
        minimize(objectives.sphere, start, orthogonal=["W"], **options)
    minimize(objectives.sphere, start, orthogonal=["V"], lr=5.0, **options)  # which is not used


@pytest.mark.bad_input
def test_what_makes_no_sense_is_refused():
    for options, text in [
        ({"orthogonal": ["W"]}, "must name parameters: got W; the parameters are x, y"),
        ({"generations": 0}, "`generations` must be a whole number of at least 1: got 0"),
        ({"workers": -1}, "`workers` must be a whole number of at least 0: got -1"),
        ({"perturbation": "none"}, "must be one of 'ambient', 'geodesic': got 'none'"),
    ]:
        with pytest.raises(ValueError, match=text):
            minimize(bowl, START, **options)
    with pytest.raises(NotOnManifoldError):
        minimize(bowl, {"x": torch.ones(3, 3)}, orthogonal=["x"])
    with pytest.raises(NonFiniteReturnError, match="got nan at plus direction 0 of generation 0"):
        minimize(objectives.nan, START)
