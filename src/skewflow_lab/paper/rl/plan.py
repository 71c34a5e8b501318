"""The cells of an `RLConfig`, and what makes one invalid."""

import math
from itertools import product

from ...rl.config import RLConfig
from ...rl.jobs import Job
from ...rl.methods import FROZEN, Settings
from ...rl.pool import require_envpool
from ...rl.ray_workers import require_ray
from ...rl.search import LRS, RATES, SEED
from ...rl.tasks import PAPER_TASKS, require_mjx
from ...rl.video import renderer
from ...runs.files import RunError
from ...runs.run import Run


def jobs_of(config: RLConfig) -> list[Job]:
    """All runs, seed by seed: what a stopped run has finished compares all methods."""
    jobs = []
    for task, seed, method in product(config.task, config.seeds, config.method):
        sizes = config.hidden if method != "affine" else (0,)
        periods = config.project_every if method == "ortinit-vanRNN" else (0,)
        for hidden, p in product(sizes, periods):
            jobs.append(Job(task, method, hidden, p, seed))
    return jobs


def jobs_by_cell(config: RLConfig) -> dict[str, list[Job]]:
    """The jobs of each cell: one; or those that MJX simulates at once."""
    jobs = jobs_of(config)
    if config.backend != "mjx":
        return {job.cell: [job] for job in jobs}
    many = max(1, config.batch // _num_episodes(config))
    cells = {}
    for task in config.task:
        own = [job for job in jobs if job.task == task]
        for n, at in enumerate(range(0, len(own), many)):
            cells[f"{task},batch={n}"] = own[at : at + many]
    return cells


def searches_by_cell(config: RLConfig) -> dict[str, Job]:
    """The cells that search settings, each with the job that is tried."""
    found: dict[str, Job] = {}
    for job in jobs_of(config) if config.trials else ():
        period = config.project_every[0] if job.project_every else 0
        tried = Job(job.task, job.method, job.hidden, period, SEED)
        found.setdefault(search_cell(job), tried)
    return found


def search_cell(job: Job) -> str:
    """The cell that searches the settings of a job: all seeds, and all p, share it."""
    size = f",h={job.hidden}" if job.hidden else ""
    return f"search,{job.task},{job.method}{size}"


def settings_of(config: RLConfig, job: Job, run: Run) -> Settings:
    """The settings that a job runs with: those that its search has found, or the given ones."""
    if not config.trials:
        return Settings(config.lr, config.rate, config.momentum, config.sigma)
    found = run.result(search_cell(job))
    assert found is not None  # it is among the cells that the job needs
    return Settings(**found["settings"])


def updates_by_cell(config: RLConfig) -> dict[str, int]:
    """The cells that time an update, each with its size."""
    return {f"update,d={d}": d for d in config.update_sizes}


def episodes_by_cell(config: RLConfig) -> dict[str, int]:
    """The number of episodes of each cell that MJX simulates at once."""
    if config.backend != "mjx":
        return {}
    return {cell: len(jobs) * _num_episodes(config) for cell, jobs in jobs_by_cell(config).items()}


def _num_episodes(config: RLConfig) -> int:
    """Episodes of one job in one generation."""
    return 2 * config.num_directions * config.num_evaluations


def check(config: RLConfig) -> None:
    """Refuse settings that no run can be made with.

    Raises:
        RunError: If there is one; the message names the option.
    """
    least = {"generations": 1, "num_directions": 1, "num_evaluations": 1, "horizon": 1}
    least |= {"num_scores": 1, "score_every": 1, "final_scores": 1, "hidden": 2, "num_draws": 1}
    least |= {"project_every": 1, "seeds": 0, "workers": 0, "rho_every": 0, "update_sizes": 2}
    least |= {"batch": 1, "train_horizon": 1}
    for name, bound in least.items():
        value = getattr(config, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number not in ("ray", None) and number < bound:
                flag = name.replace("_", "-")
                raise RunError(f"--{flag} must be at least {bound}: got {number}.")
    for name in ("sigma", "lr", "rate"):
        if not 0 < getattr(config, name) < math.inf:
            raise RunError(f"--{name} must be above 0 and finite: got {getattr(config, name)}.")
    if not 0 <= config.momentum < 1:
        raise RunError(f"--momentum must be at least 0 and below 1: got {config.momentum}.")
    if not 0 <= config.alive_part <= 1:
        raise RunError(f"--alive-part must lie between 0 and 1: got {config.alive_part}.")
    most = len(LRS) * len(RATES)
    if config.trials and (config.trials & (config.trials - 1) or not 2 <= config.trials <= most):
        raise RunError(
            f"--trials must be 0, or a power of 2 from 2 to {most}: got {config.trials}."
        )
    if max(config.seeds, default=0) >= SEED:
        raise RunError(f"--seeds must be below {SEED}, that of searches: got {max(config.seeds)}.")
    _check_backend(config)
    if config.videos:
        renderer()  # before hours of training
    names = [job.cell for job in jobs_of(config)]
    if not names:
        raise RunError("a run needs at least one task, method, hidden size and seed: got none.")
    for name in names:
        if names.count(name) > 1:  # one run would be counted as two seeds
            raise RunError(
                f"policies must differ: got {name!r} twice. Give each value of an option once."
            )


def _check_backend(config: RLConfig) -> None:
    if config.backend == "envpool":
        require_envpool()
    if config.workers == "ray":
        if config.backend != "processes":
            raise RunError(
                "--workers ray belongs to --backend processes: got --backend "
                f"{config.backend}. Add --backend processes."
            )
        require_ray()
    elif config.address is not None:
        raise RunError(f"--address belongs to --workers ray: got --workers {config.workers}.")
    if config.backend != "mjx":
        if config.train_horizon is not None:
            raise RunError(
                f"--train-horizon belongs to --backend mjx: got --backend {config.backend}."
            )
        return
    require_mjx()
    if config.trials:
        require_envpool("a search of settings for --backend mjx")
    for name, given, refused in (
        ("task", config.task, set(config.task) - set(PAPER_TASKS)),
        ("method", config.method, set(config.method) & set(FROZEN)),
    ):
        if refused:
            raise RunError(
                f"--{name} must be known to --backend mjx: got {', '.join(sorted(refused))} among "
                f"{', '.join(given)}. Use --backend envpool for it."
            )
