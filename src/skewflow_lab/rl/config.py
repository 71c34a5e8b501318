"""The settings of `skewflow reproduce rl`."""

from dataclasses import dataclass
from typing import Literal

from .methods import Method
from .tasks import TaskName


@dataclass(frozen=True, kw_only=True)
class RLConfig:
    """Policies by evolution strategies; the paper gives no more than hidden sizes and seeds."""

    task: tuple[TaskName, ...] = ("HalfCheetah",)
    """Control tasks."""
    method: tuple[Method, ...] = (
        "stoch-ortRNN",
        "stoch-many-ortRNN",
        "stoch-uniform-ortRNN",
        "exact-ortRNN",
        "vanRNN",
        "vanRNN-radius-1",
        "ortinit-vanRNN",
        "frozen-ortRNN",
        "frozen-0.6-ortRNN",
    )
    """Ways of training: the paper's, and controls."""
    hidden: tuple[int, ...] = (64,)
    """Entries of the recurrent state; an affine policy has none."""
    num_draws: int = 16
    """Matchings that stoch-many-ortRNN draws for a gradient."""
    project_every: tuple[int, ...] = (20,)
    """Steps p between two projections of ortinit-vanRNN; the paper has 20, 10, 8, 5 and 4."""
    seeds: tuple[int, ...] = tuple(range(10))
    """Seeds; one run for each."""
    generations: int = 630
    """Number of steps of the strategy. At 64 units these are ten sweeps of single matchings."""
    num_directions: int = 16
    """Directions of a generation; each costs two episodes or more."""
    num_evaluations: int = 1
    """Episodes on each side of a direction."""
    common_starts: bool = True
    """All directions of a generation begin in the same states. If not, each has its own states, the
    same for its two sides, so that the noise of the starts averages out over the directions."""
    horizon: int = 200
    """Longest episode."""
    alive_part: float = 0.0
    """Part of the bonus for being alive that training keeps, 0 to 1; scores have all of it. Tasks
    whose episodes end by falling pay one: Humanoid 5 a step, Walker2d 1."""
    trials: int = 16
    """Settings that are tried for each method by successive halving, before its seeds run with the
    best of them; 0 runs with the four below instead. A power of 2."""
    lr: float = 0.05
    """Step size of all parameters but the transition, for gradients normalised as in ARS."""
    rate: float = 0.03
    """Part |dW| / |W| by which a generation of pure noise moves the transition."""
    momentum: float = 0.0
    """Of all trained parameters."""
    sigma: float = 0.05
    """Standard deviation of a perturbation, for each entry."""
    num_scores: int = 8
    """Episodes of the unperturbed policy for a point of the learning curve."""
    score_every: int = 10
    """Generations between two points of the learning curve."""
    final_scores: int = 32
    """Episodes in the original environment that score the last policy."""
    rho_every: int = 0
    """Generations of stoch-ortRNN between two measurements of rho (Sec. 9.2); 0 for none."""
    update_sizes: tuple[int, ...] = (200, 400)
    """Sizes d at which one update by each method is timed."""
    backend: Literal["envpool", "processes", "mjx"] = "envpool"
    """Where episodes run: EnvPool's threads, all episodes of a generation in lockstep; worker
    processes with the original environments; or MJX, on a GPU if there is one, on cheaper models,
    with other random directions, several jobs at once. Last policies are always scored in the
    original environments."""
    batch: int = 8192
    """Episodes that MJX simulates at once: as many jobs as fit advance together."""
    train_horizon: int | None = None
    """Longest episode of training on MJX, if it is shorter than the horizon, that of scores."""
    workers: int | Literal["ray"] = 0
    """Threads or processes that simulate, 0 for one on each core; or "ray". The results are the
    same."""
    address: str | None = None
    """Address of a Ray cluster; without it, `--workers ray` starts a Ray on this machine."""
    videos: bool = False
    """Draw an episode of the best policy of each method; with `--resume` also of a finished run."""
