"""The scores of a last policy, and how it moves."""

from statistics import fmean

from skewflow.es import Moments
from skewflow.es.objective import Params

from .gait import Gait, has_torso
from .rollout import Rollout


def score(
    rollout: Rollout, params: Params, moments: Moments | None, seeds: tuple[int, ...]
) -> tuple[list[float], dict[str, float]]:
    """The returns of episodes in the original environment, and the means of their gaits."""
    environment = rollout.simulation()
    returns, gaits = [], []
    for seed in seeds:
        if has_torso(environment):
            gait = Gait(rollout.task, environment)
            total, _ = rollout.episode(params, seed, moments, gait.watch)
            gaits.append(gait.result())
        else:
            total, _ = rollout.episode(params, seed, moments)
        returns.append(total)
    names = gaits[0] if gaits else ()
    return returns, {name: fmean(gait[name] for gait in gaits) for name in names}
