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
    """Where `minimize` ended, and how it came there.

    Args:
        params: The last centre.
        score: Its value.
        records: One for each generation.
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
    r"""Minimise a function whose gradient is not known, by `EvolutionStrategy` (Sec. 6.1).

    Args:
        f: Takes the parameters by name, returns a number; or an `Objective`, for one that draws
            random numbers. Which process calls it must not matter.
        params: Where to start; not changed.
        orthogonal: The names of those that are orthogonal and stay so.
        generations: Steps.
        num_directions: Each costs two evaluations a generation; the centre costs one more.
        sigma: Length of a perturbation, for each entry.
        lr: Of the optimisers, unless `optimizers` makes them.
        optimizers: Called with the orthogonal and with the other parameters, as (name, parameter);
            returns the optimisers. `FlowAdam` with dense steps and `Adam` when omitted. In a run
            that goes on, their options, such as rates, come from the checkpoint.
        shaping: See `direction_weights`.
        top: Use only this many of the directions, the best.
        perturbation: Of the orthogonal parameters: "ambient" as in the paper, which evaluates `f`
            off the manifold, or "geodesic", which never does, at the price of an exponential for
            each evaluation.
        num_evaluations: Evaluations of each point, for an `Objective` with seeds.
        maximize: Maximise instead.
        seed: Of all random numbers.
        workers: Processes, see `LocalWorkers`; 0 evaluates in this one. The result is the same.
        checkpoint: A file that is written after each generation, whole or not at all, with a
            checksum. If it exists, the run that wrote it goes on, and ends in the same bits as one
            that never stopped.
        on_generation: Called with the numbers of each generation.

    Raises:
        NonFiniteReturnError: If `f` returns NaN or infinity.
        WorkerError: If workers die again and again.
        CheckpointError: If the file is damaged or cannot be written, or belongs to a run with other
            settings: `lr` and `orthogonal` count, the options of your own `optimizers` do not.

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
        raise ValueError(f"`workers` must be a whole number from 0 on: got {workers!r}.")
    names = frozenset(orthogonal)
    if names - set(params):
        raise ValueError(
            f"`orthogonal` must name parameters: got {', '.join(sorted(names - set(params)))}; "
            f"there are {', '.join(params)}."
        )
    own = {name: nn.Parameter(p.detach().clone()) for name, p in params.items()}
    marked = [(name, p) for name, p in own.items() if name in names]
    rest = [(name, p) for name, p in own.items() if name not in names]
    strategy = EvolutionStrategy(
        own,
        optimizers(marked, rest) if optimizers else _adams(marked, rest, lr, seed),
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


def _adams(marked: Named, rest: Named, lr: float, seed: int) -> list[torch.optim.Optimizer]:
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
            f"cannot write {path}: {error.strerror or error}. The generation before is whole in "
            "it. Make room, or choose another file; the run goes on from there."
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
    check_settings(settings, theirs)  # an optimiser's own state would bring its old rate with it
    strategy.load_state_dict(state)
    return records
