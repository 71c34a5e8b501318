"""`skewflow reproduce NAME`: run an experiment in its own folder."""

import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from .assets import assets
from .experiment import Experiment
from .files import RunError, read_json, read_object, write_bytes, write_checked
from .processes import run_cells
from .run import Run

OF_THE_MACHINE = ("data", "device", "precision")
"""Options whose default may depend on the machine, so a recorded command always names them."""
PRESETS = ("ci", "quick", "cpu", "paper")


def app(
    experiments: Mapping[str, Experiment[Any]], args: Sequence[str]
) -> tyro.extras.SubcommandApp:
    """The subcommands, one for each experiment; the preset in `args` sets their defaults."""
    group = tyro.extras.SubcommandApp()
    for experiment in experiments.values():
        group.command(name=experiment.name, help=experiment.title)(command(experiment, args))
    return group


def execute(
    experiment: Experiment[Any],
    config: Any,
    *,
    preset: str = "quick",
    out: Path = Path("runs"),
    resume: bool = False,
    processes: int = 1,
    console: Console | None = None,
) -> Path:
    """Run all unfinished cells, then write the summary, the tables and the figures.

    Returns:
        The run's folder, ``out / experiment.name``.

    Raises:
        RunError: If the folder holds another run, or cannot be written, or the cells cannot run in
            so many processes.
    """
    _check_processes(experiment, processes)
    folder = out / experiment.name
    free = experiment.local | experiment.parts
    wanted = {
        "experiment": experiment.name,
        "preset": preset,
        "command": command_line(experiment, config, preset),
        "config": {k: v for k, v in asdict(config).items() if k not in free},
    }
    cells = experiment.cells(config)
    _check_finite(config)
    with Run.start(
        folder,
        cells,
        wanted,
        resume=resume,
        besides=experiment.environment(config),
        same=experiment.machine(config),
        check=partial(experiment.check_finished, config),
    ) as run:
        _work(experiment, config, wanted, run, processes, console or Console(stderr=True))
    return folder


def _check_processes(experiment: Experiment[Any], processes: int) -> None:
    if processes < 1:
        raise RunError(f"--processes must be at least 1: got {processes}.")
    if processes > 1 and not experiment.independent:
        raise RunError(
            f"--processes must be 1 for {experiment.name}: got {processes}. Its cells need each "
            "other's results, all cores, or a machine that does nothing else."
        )


def _work(
    experiment: Experiment[Any],
    config: Any,
    wanted: dict[str, Any],
    run: Run,
    processes: int,
    console: Console,
) -> None:
    folder, cells = run.folder, run.cells
    if run.changed:
        console.print(
            f"note: {', '.join(run.changed)} changed since an earlier start of this run; new cells "
            "may differ from those of an unbroken run. Its environment.json has all starts."
        )
    with _bar(console) as bar:
        task = bar.add_task(experiment.name, total=float(len(cells)))
        if processes > 1:
            waiting = [cell for cell in cells if run.result(cell) is None]
            bar.update(task, completed=len(cells) - len(waiting))
            with closing(run_cells(experiment, config, run, waiting, processes)) as finished:
                for cell, result, clocks in finished:
                    run.finish(cell, result, clocks)
                    bar.update(task, advance=1)
        else:
            for number, cell in enumerate(cells):
                bar.update(task, description=f"{experiment.name} {cell}", completed=number)
                run.on_progress = partial(_advance, bar, task, number)
                if run.result(cell) is None:
                    run.finish(cell, experiment.run_cell(config, cell, run))
        run.sort_metrics()  # cells that ran in several processes ended in another order
        bar.update(task, description=experiment.name, completed=len(cells))
    # Results are read from the files, so that an unbroken run gives the same as a resumed one.
    done = {cell: found for cell in cells if (found := run.result(cell)) is not None}
    results = experiment.summarise(config, done)
    verdict = experiment.verdict(results)
    write_checked(folder / "summary.json", {**wanted, "verdict": verdict, "results": results})
    timing = read_object(folder / "timing.json")
    for name, data in assets(experiment, results, timing).items():
        write_bytes(folder / name, data)
    with _bar(console) as bar:
        task = bar.add_task(f"{experiment.name} videos", total=1.0, visible=False)
        run.on_progress = partial(_advance, bar, task, 0)
        experiment.film(config, results, run)


def _check_finite(config: Any) -> None:
    """Check that all numbers are finite, as JSON requires; experiments check the rest."""
    for name, value in asdict(config).items():
        for number in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise RunError(f"--{name.replace('_', '-')} must be finite: got {number}.")


def command_line(experiment: Experiment[Any], config: Any, preset: str) -> str:
    """The command of this run: the preset, and the fields that differ from it."""
    words = ["skewflow", experiment.group, experiment.name, "--preset", preset]
    base = experiment.presets[preset]
    for field in fields(config):
        value = getattr(config, field.name)
        as_preset = value == getattr(base, field.name) and field.name not in OF_THE_MACHINE
        if as_preset or field.name in experiment.local:
            continue
        flag = field.name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            values = value if isinstance(value, (tuple, list)) else (value,)
            words += [f"--{flag}", *(shlex.quote(str(v)) for v in values)]
    return " ".join(words)


def command(experiment: Experiment[Any], args: Sequence[str]) -> Callable[..., None]:
    """The function of one subcommand; the preset in `args` sets its defaults."""
    preset = _preset(args)
    if preset not in experiment.presets:
        preset = "quick"  # the preset in `args` is that of another experiment, or unknown
    settings = experiment.presets[preset]

    def reproduce(
        config: Any = settings,
        preset: str = "quick",
        out: Path = Path("runs"),
        resume: bool = False,
        processes: int = 1,
    ) -> None:
        console = Console(stderr=True)
        try:
            folder = execute(
                experiment,
                config,
                preset=preset,
                out=out,
                resume=resume,
                processes=processes,
                console=console,
            )
        except KeyboardInterrupt:
            console.print("stopped; continue with --resume", style="red")
            sys.exit(130)
        summary = read_json(folder / "summary.json")
        # Unlike the console, `print` never wraps a path, so that it can be copied.
        print(summary["verdict"])
        print(f"written: {(folder / 'summary.json').resolve()}")

    kind: Any = type(settings)
    reproduce.__annotations__["config"] = tyro.conf.OmitArgPrefixes[kind]  # type: ignore[misc]
    reproduce.__annotations__["preset"] = Literal[tuple(experiment.presets)]
    reproduce.__doc__ = f"""{experiment.title}

    Args:
        config: The settings.
        preset: {experiment.preset_help} The defaults below are those of the preset.
        out: The folder of the run is created in here.
        resume: Continue the run in that folder.
        processes: Cells that run at the same time, where the experiment allows more than one.
    """
    return reproduce


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=console,
        speed_estimate_period=600.0,
    )


def _advance(bar: Progress, task: TaskID, number: int, part: float) -> None:
    bar.update(task, completed=number + part, visible=True)


def _preset(args: Sequence[str]) -> str:
    """The preset on the command line; it sets the defaults of all other options."""
    for word, after in zip(args, [*args, ""][1:], strict=True):
        name = after if word == "--preset" else word.removeprefix("--preset=")
        if word.startswith("--preset") and name in PRESETS:
            return name
    return "quick"
