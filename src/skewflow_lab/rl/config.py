"""The settings of `skewflow reproduce rl`."""

from dataclasses import dataclass
from typing import Literal

from .methods import Method
from .tasks import TASKS, TaskName


@dataclass(frozen=True, kw_only=True)
class RLConfig:
    """Policies by evolution strategies; the paper gives no more than hidden sizes and seeds."""

    task: tuple[TaskName, ...] = TASKS
    """Control tasks."""
    method: tuple[Method, ...] = (
        "stoch-ortRNN",
        "exact-ortRNN",
        "vanRNN",
        "ortinit-vanRNN",
        "affine",
    )
    """Ways of training, by the paper's names."""
    hidden: tuple[int, ...] = (200, 400)
    """Entries of the recurrent state; an affine policy has none."""
    project_every: tuple[int, ...] = (20,)
    """Steps p between two projections of ortinit-vanRNN; the paper has 20, 10, 8, 5 and 4."""
    seeds: tuple[int, ...] = tuple(range(10))
    """Seeds; one run for each."""
    generations: int = 500
    """Number of steps of the strategy."""
    num_directions: int = 256
    """Directions of a generation; each costs two episodes or more."""
    num_evaluations: int = 1
    """Episodes on each side of a direction."""
    common_starts: bool = True
    """All directions of a generation begin in the same states. If not, each has its own states, the
    same for its two sides, so that the noise of the starts averages out over the directions."""
    horizon: int = 1000
    """Longest episode."""
    alive_part: float = 0.0
    """Part of the bonus for being alive that training keeps, 0 to 1; scores have all of it. Tasks
    whose episodes end by falling pay one: Humanoid 5 a step, Walker2d 1."""
    sigma: float = 0.02
    """Standard deviation of a perturbation, for each entry."""
    lr: float = 0.02
    """Step size of all parameters but orthogonal ones, for gradients normalised as in ARS."""
    orthogonal_lr: float = 0.005
    """Step size on O(d); a matching turns its planes d - 1 times as far as the exact step does."""
    num_scores: int = 8
    """Episodes of the unperturbed policy in each generation: the learning curve."""
    rho_every: int = 10
    """Generations of stoch-ortRNN between two measurements of rho (Sec. 9.2); 0 for none."""
    update_sizes: tuple[int, ...] = (200, 400)
    """Sizes d at which one update by each method is timed."""
    backend: Literal["processes", "mjx"] = "processes"
    """Where episodes run: worker processes, or MJX, on a GPU if there is one. MJX trains on cheaper
    models with other random directions, several jobs at once; scores are always of the original
    environments, by worker processes."""
    batch: int = 8192
    """Episodes that MJX simulates at once: as many jobs as fit advance together."""
    train_horizon: int | None = None
    """Longest episode of training on MJX, if it is shorter than the horizon, that of scores."""
    workers: int | Literal["ray"] = 0
    """Processes that simulate, 0 for one on each core; or "ray". The results are the same."""
    address: str | None = None
    """Address of a Ray cluster; without it, `--workers ray` starts a Ray on this machine."""
    videos: bool = False
    """Draw an episode of the best policy of each method; with `--resume` also of a finished run."""
