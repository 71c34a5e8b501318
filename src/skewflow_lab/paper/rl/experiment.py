"""Evolution strategies with recurrent policies on six control tasks (Sec. 6.1)."""

import math
import os
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from skewflow.es import EvolutionStrategy, LocalWorkers, Moments, Workers

from ...rl.config import RLConfig
from ...rl.jobs import Job, Trainee
from ...rl.ray_workers import RayWorkers, require_ray
from ...rl.rollout import Rollout
from ...rl.tasks import missing_simulators, require_mjx, require_simulators, versions
from ...rl.video import Film, encode, film, renderer
from ...runs.experiment import Experiment, Figure, Table, Timing, Video
from ...runs.files import RunError, write_bytes
from ...runs.run import Run
from ...runs.threads import one_thread
from . import report, updates

ROUNDS = 7
"""Interleaved rounds of the timing of an update."""


def _jobs(config: RLConfig) -> list[Job]:
    jobs = []
    for task, method in product(config.task, config.method):
        sizes = config.hidden if method != "affine" else (0,)
        periods = config.project_every if method == "ortinit-vanRNN" else (0,)
        for hidden, p, seed in product(sizes, periods, config.seeds):
            jobs.append(Job(task, method, hidden, p, seed))
    return jobs


def _jobs_by_cell(config: RLConfig) -> dict[str, list[Job]]:
    """The jobs of each cell: one; or those that MJX simulates at once, seed by seed."""
    jobs = _jobs(config)
    if config.backend != "mjx":
        return {job.cell: [job] for job in jobs}
    many = max(1, config.batch // _num_episodes(config))
    cells = {}
    for task in config.task:
        own = sorted((job for job in jobs if job.task == task), key=lambda job: job.seed)
        for n, at in enumerate(range(0, len(own), many)):
            cells[f"{task},lot={n}"] = own[at : at + many]
    return cells


def _num_episodes(config: RLConfig) -> int:
    """Episodes of one job in one generation."""
    return 2 * config.num_directions * config.num_evaluations


def _episodes_by_cell(config: RLConfig) -> dict[str, int]:
    """The number of episodes of each cell that MJX simulates at once."""
    if config.backend != "mjx":
        return {}
    return {cell: len(jobs) * _num_episodes(config) for cell, jobs in _jobs_by_cell(config).items()}


def _updates_by_cell(config: RLConfig) -> dict[str, int]:
    return {f"update,d={d}": d for d in config.update_sizes}


class RL(Experiment[RLConfig]):
    """One cell for each task, method, size and seed."""

    name = "rl"
    title = "Recurrent policies by evolution strategies"
    paper = (
        "A recurrent world model and a policy affine in its state, learned together by evolution "
        "strategies on six control tasks, hidden sizes 200 and 400, ten seeds, 800 machines "
        "(Sec. 6.1). stoch-ortRNN, with matchings and h = |x|, did well on all of them, in "
        "particular in comparison to exact-ortRNN, and alone walked well on Humanoid; "
        "ortinit-vanRNN, vanRNN and affine policies moved worse. The paper shows curves; it gives "
        "no number, step size, sigma or population."
    )
    presets: Mapping[str, RLConfig] = {
        "ci": RLConfig(
            task=("HalfCheetah",),
            method=("stoch-ortRNN",),
            hidden=(32,),
            seeds=(0,),
            generations=10,
            num_directions=16,
            horizon=200,
            sigma=0.05,
            lr=0.1,
            num_scores=4,
            rho_every=0,
            update_sizes=(),
        ),
        "quick": RLConfig(
            task=("HalfCheetah",),
            method=("stoch-ortRNN",),
            hidden=(64,),
            seeds=(0, 1, 2),
            generations=60,
            num_directions=32,
            horizon=200,
            sigma=0.05,
            lr=0.1,
            num_scores=4,
            rho_every=0,
        ),
        "paper": RLConfig(),
    }
    preset_help = (
        '"ci" takes seconds, "quick" about two minutes on two cores, "paper" the work of a cluster.'
    )
    local = frozenset({"workers", "address", "videos"})

    def missing(self) -> str | None:
        """The simulators."""
        absent = missing_simulators()
        return f"needs {' and '.join(absent)}: pip install 'skewflow[rl]'" if absent else None

    def environment(self, config: RLConfig) -> dict[str, str]:
        """The simulators; with MJX also JAX, and the device that it uses."""
        return versions(mjx=config.backend == "mjx")

    def cells(self, config: RLConfig) -> Sequence[str]:
        """Task, method, size and seed; and the sizes whose update is timed."""
        require_simulators()
        _check(config)
        if config.backend == "mjx":
            require_mjx()
        return [*_updates_by_cell(config), *_jobs_by_cell(config)]

    @one_thread()
    def run_cell(self, config: RLConfig, cell: str, run: Run) -> dict[str, Any]:
        """Train one policy; after each generation its state is on disk. Or time an update."""
        if cell in (sizes := _updates_by_cell(config)):
            for name, value in updates.readings(updates.measure(sizes[cell], ROUNDS)).items():
                run.time(cell, name, value)
            return {}
        jobs = _jobs_by_cell(config)[cell]
        rollout = Rollout(jobs[0].task, config.horizon, alive_part=config.alive_part)
        with _workers(config, rollout) as workers:
            if config.backend == "mjx":
                from ...rl.mjx_train import train

                return {"runs": train(config, jobs, workers, cell, run)}
            return _train(config, jobs[0], workers, cell, run)

    def summarise(self, config: RLConfig, cells: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """The runs of each task and size, by method."""
        groups: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = {}
        runs = dict(cells)
        for cell in cells.values():
            runs.update(cell.get("runs", {}))
        for job in _jobs(config):
            methods = groups.setdefault((job.task, job.hidden), {})
            methods.setdefault(job.label, []).append({"cell": job.cell, **runs[job.cell]})
        shared = {
            "generations": config.generations,
            "horizon": config.horizon,
            "num_scores": config.num_scores,
        }
        return {
            "updates": _updates_by_cell(config),
            "lots": _episodes_by_cell(config),
            "groups": [
                {"task": task, "hidden": hidden, **shared, "methods": methods}
                for (task, hidden), methods in groups.items()
            ],
        }

    def merge(
        self, parts: Sequence[tuple[Mapping[str, Any], Timing]]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Of runs of different tasks or sizes."""
        return report.merge(parts)

    def verdict(self, results: Mapping[str, Any]) -> str:
        """The mean of each method, and whether seeds differ more than methods do."""
        return report.verdict(results)

    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """Returns; rho and the time of an update, if they were measured."""
        return report.tables(results, timing)

    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """Learning curves; rho, if it was measured."""
        return report.figures(results)

    def videos(self, results: Mapping[str, Any]) -> list[Video]:
        """One for each method of a group, and all of them side by side."""
        return [video for video, _ in report.casts(results)]

    def film(self, config: RLConfig, results: Mapping[str, Any], run: Run) -> None:
        """Draw an episode of the best policy of each method, that of its first score."""
        if not config.videos:
            return
        casts = report.casts(results)
        tasks = {job.cell: job.task for job in _jobs(config)}
        films: dict[str, Film] = {}
        for number, (video, cast) in enumerate(casts):
            for label, cell in cast:
                if cell not in films:
                    kept = run.kept(cell)
                    moments = kept["moments"] and Moments.from_state_dict(kept["moments"])
                    episode = kept["params"], moments, kept["seed"], config.horizon
                    films[cell] = film(label, tasks[cell], *episode)
            data = encode([films[cell] for _, cell in cast])
            write_bytes(run.folder / "videos" / f"{video.name}.gif", data)
            run.progress((number + 1) / len(casts))


def _train(config: RLConfig, job: Job, workers: Workers, cell: str, run: Run) -> dict[str, Any]:
    """One policy, a generation at a time."""
    trainee = Trainee(config, job, EvolutionStrategy)
    strategy = trainee.strategy
    state = run.load(cell)
    if state is not None:
        trainee.load_state_dict(state)

    def on_task(done: int) -> None:
        run.progress((strategy.generation + done / total) / config.generations)

    while strategy.generation < config.generations:
        generation = strategy.ask()
        total = len(generation.tasks)
        run.metric(cell, **trainee.tell(workers.evaluate(generation, on_task=on_task)))
        run.save(cell, trainee.state_dict())
    last = strategy.ask()
    ends = workers.evaluate(last, [task for task in last.tasks if task.sign == 0])
    run.keep(cell, trainee.policy())
    return trainee.result(ends)


def _check(config: RLConfig) -> None:
    """Every number is one that a run can be made with."""
    least = {"generations": 1, "num_directions": 1, "num_evaluations": 1, "horizon": 1}
    least |= {"num_scores": 1, "hidden": 2, "project_every": 1, "seeds": 0, "workers": 0}
    least |= {"rho_every": 0, "update_sizes": 2, "batch": 1, "train_horizon": 1}
    for name, bound in least.items():
        value = getattr(config, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number not in ("ray", None) and number < bound:
                flag = name.replace("_", "-")
                raise RunError(f"--{flag} must be at least {bound}: got {number}.")
    for name in ("sigma", "lr", "orthogonal_lr"):
        if not 0 < getattr(config, name) < math.inf:
            flag = name.replace("_", "-")
            raise RunError(f"--{flag} must be above 0 and finite: got {getattr(config, name)}.")
    if not 0 <= config.alive_part <= 1:
        raise RunError(f"--alive-part must lie between 0 and 1: got {config.alive_part}.")
    if config.workers == "ray":
        require_ray()
    elif config.address is not None:
        raise RunError(f"--address belongs to --workers ray: got --workers {config.workers}.")
    if config.train_horizon is not None and config.backend != "mjx":
        raise RunError(f"--train-horizon belongs to --backend mjx: got --backend {config.backend}.")
    if config.videos:
        renderer()  # before hours of training
    names = [job.cell for job in _jobs(config)]
    if not names:
        raise RunError("a run needs at least one task, method, hidden size and seed: got none.")
    for name in names:
        if names.count(name) > 1:  # one run would be counted as two seeds
            raise RunError(
                f"policies must differ: got {name!r} twice. Give each value of an option once."
            )


def _workers(config: RLConfig, rollout: Rollout) -> Workers:
    # A tenth of a second for each step is a hundred times what the slowest simulation takes.
    patience = 600 + 0.1 * config.horizon * config.num_evaluations
    if config.workers == "ray":
        return RayWorkers(rollout, address=config.address, patience=patience)
    return LocalWorkers(rollout, config.workers or os.cpu_count() or 1, patience=patience)
