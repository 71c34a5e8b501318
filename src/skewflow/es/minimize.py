"""`minimize`: a black-box optimiser for any function of named parameters."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .. import _validate
from .._files import load_checked, save_checked
from ..errors import CheckpointError
from ..optim import FlowAdam
from .objective import Objective, PlainFunction
from .strategy import EvolutionStrategy, Record, check_settings
from .workers import InProcess, LocalWorkers

Named = list[tuple[str, nn.Parameter]]
MakeOptimizers = Callable[[Named, Named], Sequence[torch.optim.Optimizer]]


@dataclass(frozen=True)
class Result:
    """The result of `minimize` (not in the paper).

    Args:
        params: The last centre.
        score: The value at the last centre.
        records: A record of each generation.
    """

    params: dict[str, Tensor]
    score: float
    records: list[Record]


def minimize(
    f: PlainFunction | Objective,
    params: Mapping[str, Tensor],
    *,
    orthogonal: Iterable[str] = (),
    generations: int = 100,
    num_directions: int = 32,
    sigma: float = 0.05,
    lr: float = 0.05,
    optimizers: MakeOptimizers | None = None,
    shaping: Literal["ars", "ranks", "plain"] = "ranks",
    top: int | None = None,
    perturbation: Literal["ambient", "geodesic"] = "ambient",
    num_evaluations: int = 1,
    maximize: bool = False,
    seed: int = 0,
    workers: int = 0,
    checkpoint: Path | str | None = None,
    on_generation: Callable[[Record], None] = lambda record: None,
) -> Result:
    r"""Minimise a function without gradients, by `EvolutionStrategy` (Sec. 6.1).

    Args:
        f: A function that takes the parameters by name and returns a number, or an `Objective` if
            it draws random numbers. Its value must not depend on the process that calls it.
        params: The starting point, by name; it is not changed.
        orthogonal: Names of the parameters that are orthogonal and stay so.
        generations: Number of steps.
        num_directions: Number of directions; each costs two evaluations per generation, and the
            centre costs one more.
        sigma: Standard deviation of a perturbation, per entry.
        lr: Learning rate of the optimisers, unless `optimizers` makes them.
        optimizers: A function that makes the optimisers from the orthogonal and the other
            parameters, each a list of (name, parameter). When omitted, these are `FlowAdam` with
            dense steps and `Adam`. A resumed run takes their options, such as learning rates, from
            the checkpoint.
        shaping: See `direction_weights`.
        top: Number of directions to use, the best ones; all when omitted.
        perturbation: Perturbation of the orthogonal parameters. "ambient" is that of the paper and
            evaluates `f` off the manifold; "geodesic" stays on it and costs an exponential for each
            evaluation.
        num_evaluations: Evaluations of each point, for an `Objective` with seeds.
        maximize: Maximise instead.
        seed: Seed of all random numbers.
        workers: Number of worker processes, see `LocalWorkers`; 0 evaluates in this process. The
            result is the same.
        checkpoint: A file that is written atomically after each generation, with a checksum. If it
            exists, the run that wrote it is resumed and ends in the same bits as one without a
            break.
        on_generation: Called with the record of each generation.

    Raises:
        NonFiniteReturnError: If `f` returns NaN or infinity.
        WorkerError: If workers die repeatedly.
        CheckpointError: If the file is damaged, cannot be written, or belongs to a run with other
            settings. The options of your own `optimizers` are not compared.

    Example:
        >>> from skewflow.geometry import haar
        >>> g = torch.Generator().manual_seed(0)
        >>> target = haar(4, special=True, generator=g)
        >>> start = {"W": haar(4, special=True, generator=g)}
        >>> distance = lambda p: (p["W"] - target).square().sum()
        >>> result = minimize(distance, start, orthogonal=["W"], generations=150)
        >>> bool(result.score < 0.02 < distance(start))
        True
        >>> W = result.params["W"]
        >>> bool(torch.allclose(W.mT @ W, torch.eye(4), atol=1e-5))
        True
    """
    _validate.count(generations, "generations")
    _validate.one_of(perturbation, ("ambient", "geodesic"), "perturbation")
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise ValueError(f"`workers` must be a whole number of at least 0: got {workers!r}.")
    names = frozenset(orthogonal)
    if names - set(params):
        raise ValueError(
            f"`orthogonal` must name parameters: got {', '.join(sorted(names - set(params)))}; "
            f"the parameters are {', '.join(params)}."
        )
    own = {name: nn.Parameter(p.detach().clone()) for name, p in params.items()}
    marked = [(name, p) for name, p in own.items() if name in names]
    rest = [(name, p) for name, p in own.items() if name not in names]
    strategy = EvolutionStrategy(
        own,
        optimizers(marked, rest) if optimizers else _default_optimizers(marked, rest, lr, seed),
        num_directions=num_directions,
        sigma=sigma,
        shaping=shaping,
        top=top,
        maximize=maximize,
        geodesics=names if perturbation == "geodesic" else (),
        num_evaluations=num_evaluations,
        num_scores=1,
        seed=seed,
    )
    path = None if checkpoint is None else Path(checkpoint)
    settings = {"lr": None if optimizers else lr, "orthogonal": sorted(names)}
    records = _load(path, strategy, settings) if path is not None and path.exists() else []
    with LocalWorkers(f, workers) if workers else InProcess(f) as team:
        while strategy.generation < generations:
            record = strategy.tell(team.evaluate(strategy.ask()))
            records.append(record)
            if path is not None:
                _save(path, strategy, settings, records)
            on_generation(record)
        last = strategy.ask()
        (end,) = team.evaluate(last, [task for task in last.tasks if task.sign == 0])
    return Result({name: p.detach() for name, p in own.items()}, end.value, records)


def _default_optimizers(
    marked: Named, rest: Named, lr: float, seed: int
) -> list[torch.optim.Optimizer]:
    made: list[torch.optim.Optimizer] = []
    if marked:
        made.append(FlowAdam(marked, lr, block_size="dense", seed=seed))
    if rest:
        made.append(torch.optim.Adam([p for _, p in rest], lr=lr))
    return made


def _save(
    path: Path, strategy: EvolutionStrategy, settings: dict[str, Any], records: list[Record]
) -> None:
    rows = [asdict(record) for record in records]
    whole = {"settings": settings, "strategy": strategy.state_dict(), "records": rows}
    try:
        save_checked(path, whole)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror or error}. It still holds the previous "
            "generation. Make room, or choose another file, and resume from there."
        ) from error


def _load(path: Path, strategy: EvolutionStrategy, settings: dict[str, Any]) -> list[Record]:
    way_out = "Restore it, or remove it to start from the beginning."
    whole = load_checked(path, way_out)
    try:
        theirs, rows, state = whole["settings"], whole["records"], whole["strategy"]
        records = [Record(**row) for row in rows]
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} must be a checkpoint that `minimize` wrote: it lacks an entry "
            f"({type(error).__name__}: {error}). {way_out}"
        ) from error
    check_settings(
        settings, theirs
    )  # the state of an optimiser would restore its old learning rate
    strategy.load_state_dict(state)
    return records
