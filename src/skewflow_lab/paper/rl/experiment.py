"""Evolution strategies with recurrent policies on six control tasks (Sec. 6.1)."""

from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from skewflow.es import Moments

from ...rl.config import RLConfig
from ...rl.methods import Method
from ...rl.search import search
from ...rl.tasks import PAPER_TASKS, missing_simulators, require_simulators, versions
from ...rl.train import train
from ...rl.video import Film, encode, film
from ...runs.experiment import Experiment, Figure, Table, Timing, Video
from ...runs.files import write_bytes
from ...runs.run import Run
from ...runs.threads import one_thread
from . import report, updates
from .plan import (
    check,
    episodes_by_cell,
    jobs_by_cell,
    jobs_of,
    search_cell,
    searches_by_cell,
    settings_of,
    updates_by_cell,
)

ROUNDS = 7
"""Interleaved rounds of the timing of an update."""


PAPER_METHODS: tuple[Method, ...] = (
    "stoch-ortRNN",
    "exact-ortRNN",
    "vanRNN",
    "ortinit-vanRNN",
)
"""Recurrent methods of the paper."""


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
            method=("stoch-ortRNN",),
            hidden=(32,),
            seeds=(0,),
            generations=10,
            horizon=100,
            trials=2,
            num_scores=4,
            score_every=2,
            final_scores=4,
            update_sizes=(),
        ),
        "quick": RLConfig(
            method=("stoch-ortRNN", "exact-ortRNN", "vanRNN"),
            hidden=(32,),
            seeds=(0, 1, 2),
            generations=60,
            trials=4,
            update_sizes=(),
        ),
        "cpu": RLConfig(),
        "paper": RLConfig(
            task=PAPER_TASKS,
            method=(*PAPER_METHODS, "affine"),
            hidden=(200, 400),
            generations=1990,
            num_directions=256,
            num_evaluations=4,
            horizon=1000,
            rho_every=10,
        ),
    }
    preset_help = (
        '"ci" takes seconds, "quick" less than two minutes, "cpu" some hours for each task on two '
        'cores with --processes 2 --workers 1, "paper" the work of a cluster.'
    )
    local = frozenset({"workers", "address", "videos"})
    independent = True

    def missing(self) -> str | None:
        """The simulators."""
        absent = missing_simulators()
        if not absent and find_spec("envpool") is None:
            absent = ["envpool"]
        return f"needs {' and '.join(absent)}: pip install 'skewflow[rl]'" if absent else None

    def environment(self, config: RLConfig) -> dict[str, str]:
        """The simulators; with MJX also JAX, and the device that it uses."""
        return versions(mjx=config.backend == "mjx")

    def cells(self, config: RLConfig) -> Sequence[str]:
        """The sizes whose update is timed, searches, and runs by task, method, size and seed."""
        require_simulators()
        check(config)
        return [*updates_by_cell(config), *searches_by_cell(config), *jobs_by_cell(config)]

    def needs(self, config: RLConfig, cell: str) -> Collection[str]:
        """The searches of the settings that a cell runs with."""
        jobs = jobs_by_cell(config).get(cell, ()) if config.trials else ()
        return {search_cell(job) for job in jobs}

    @one_thread()
    def run_cell(self, config: RLConfig, cell: str, run: Run) -> dict[str, Any]:
        """Train one policy, search the settings of a method, or time an update."""
        if cell in (sizes := updates_by_cell(config)):
            for name, value in updates.readings(updates.measure(sizes[cell], ROUNDS)).items():
                run.time(cell, name, value)
            return {}
        if cell in (searches := searches_by_cell(config)):
            return search(config, searches[cell], cell, run)
        jobs = jobs_by_cell(config)[cell]
        settings = [settings_of(config, job, run) for job in jobs]
        if config.backend == "mjx":
            from ...rl.mjx_train import train as train_on_mjx

            return {"runs": train_on_mjx(config, jobs, settings, cell, run)}
        return train(config, jobs[0], settings[0], cell, run)

    def summarise(self, config: RLConfig, cells: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """The runs of each task and size, by method."""
        groups: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = {}
        runs = dict(cells)
        for cell in cells.values():
            runs.update(cell.get("runs", {}))
        for job in jobs_of(config):
            methods = groups.setdefault((job.task, job.hidden), {})
            row = {"cell": job.cell, "seed": job.seed, **runs[job.cell]}
            methods.setdefault(job.label, []).append(row)
        shared = {"generations": config.generations, "horizon": config.horizon}
        return {
            "updates": updates_by_cell(config),
            "batches": episodes_by_cell(config),
            "searches": [
                {"task": job.task, "hidden": job.hidden, "method": job.method, **cells[cell]}
                for cell, job in searches_by_cell(config).items()
            ],
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
        tasks = {job.cell: job.task for job in jobs_of(config)}
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
