"""The interface of experiments: cells that run one after the other, tables and figures."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .files import RunError, check_name
from .run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

Config = TypeVar("Config")
Value = str | float | int | None
Timing = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Table:
    """Rows under named columns; None is a dash."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def __post_init__(self) -> None:
        check_name("a table", self.name)

    @property
    def numeric(self) -> tuple[bool, ...]:
        """For each column whether it holds numbers (or nan), which are aligned to the right."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns)
        return tuple(
            any(isinstance(v, (int, float)) or v == "nan" for v in column) for column in columns
        )


@dataclass(frozen=True)
class Figure:
    """A figure with a name; `draw` fills an empty figure of matplotlib."""

    name: str
    caption: str
    draw: Callable[["Canvas"], None]
    size: tuple[float, float] = (7.0, 4.2)

    def __post_init__(self) -> None:
        check_name("a figure", self.name)


@dataclass(frozen=True)
class Video:
    """A video with a name: the file videos/NAME.gif of a run, if it was made."""

    name: str
    caption: str

    def __post_init__(self) -> None:
        check_name("a video", self.name)


class Experiment(ABC, Generic[Config]):
    """A result of the paper, or of ours, that one command reproduces.

    A cell is the unit of work. It depends only on the configuration and its name, so a stopped run
    resumes with the next cell. Long cells store their state by `run.save`.
    """

    name: str
    title: str
    paper: str
    """The claim of the paper in a sentence or two, with its place."""
    presets: Mapping[str, Config]
    """"quick" takes seconds, "paper" the settings that we record."""
    preset_help: str = '"quick" takes seconds, "paper" minutes.'
    """How long the presets take, for the help text."""
    group: str = "reproduce"
    """The subcommand of `skewflow` to which it belongs."""
    local: frozenset[str] = frozenset()
    """Settings that do not change the results: they are not recorded, and a resumed run may change
    them."""
    parts: frozenset[str] = frozenset()
    """Settings that select cells: the recorded command names them, and a resumed run may select
    other cells; all finished cells stay in its folder."""

    independent: bool = False
    """Whether cells may run at the same time, in several processes: none reads the result of
    another that `needs` does not name, and no result depends on a clock."""

    def missing(self) -> str | None:
        """A sentence that names missing packages; None if it can run."""
        return None

    def environment(self, config: Config) -> dict[str, str]:
        """Entries of `environment.json` besides those of every run: other devices, packages."""
        return {}

    def machine(self, config: Config) -> Collection[str]:
        """Entries of `environment.json` in which all starts of a run must agree."""
        return ()

    def check_finished(self, config: Config, run: Run) -> None:
        """Refuse results of finished cells that a resumed run cannot go on with.

        Raises:
            RunError: If one is damaged, or was made by other rules; the message names the file.
        """

    @abstractmethod
    def cells(self, config: Config) -> Sequence[str]:
        """The names of the cells, which are valid names of files."""

    def needs(self, config: Config, cell: str) -> Collection[str]:
        """The cells whose results a cell reads; they come before it."""
        return ()

    @abstractmethod
    def run_cell(self, config: Config, cell: str, run: Run) -> dict[str, Any]:
        """Run one cell; the result is JSON without NaN."""

    @abstractmethod
    def summarise(self, config: Config, cells: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """The results of all cells as one record: everything that tables and figures show."""

    @abstractmethod
    def verdict(self, results: Mapping[str, Any]) -> str:
        """A sentence on the paper's claim, composed from the numbers."""

    @abstractmethod
    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The tables, the paper's values beside ours; clock times come from `timing`."""

    @abstractmethod
    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figures."""

    def merge(
        self, parts: Sequence[tuple[Mapping[str, Any], Timing]]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Merge the results and times of several runs, for `skewflow collect`.

        Raises:
            RunError: If the runs cannot be merged.
        """
        raise RunError(
            f"runs that are collected must be of an experiment that has parts: {self.name} has "
            "none. `skewflow report` shows any runs on one page."
        )

    def videos(self, results: Mapping[str, Any]) -> list[Video]:
        """The videos that a run may have; the report shows those that were made."""
        return []

    def film(self, config: Config, results: Mapping[str, Any], run: Run) -> None:
        """Make the videos, if the configuration asks for them, from what `run.keep` has kept."""
