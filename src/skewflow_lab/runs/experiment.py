"""What an experiment is: cells that run one after the other, and what is shown of them."""

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
        """Which columns hold numbers (or nan), and so are set flush right."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns)
        return tuple(
            any(isinstance(v, (int, float)) or v == "nan" for v in column) for column in columns
        )


@dataclass(frozen=True)
class Figure:
    """A drawing by its name; `draw` fills an empty matplotlib figure."""

    name: str
    caption: str
    draw: Callable[["Canvas"], None]
    size: tuple[float, float] = (7.0, 4.2)

    def __post_init__(self) -> None:
        check_name("a figure", self.name)


@dataclass(frozen=True)
class Video:
    """A moving picture by its name: the file videos/NAME.gif of a run, if it was made."""

    name: str
    caption: str

    def __post_init__(self) -> None:
        check_name("a video", self.name)


class Experiment(ABC, Generic[Config]):
    """A result of the paper, or of ours, that one command makes again.

    A cell is the unit of work: it depends on the configuration and its own name only, so that a
    stopped run can go on with the next one. Long cells store their state by `run.save`.
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
    """The subcommand of `skewflow` that it stands under."""
    local: frozenset[str] = frozenset()
    """Settings that say how a run is done and not what comes out: they are not recorded, and a
    resumed run may have others."""
    parts: frozenset[str] = frozenset()
    """Settings that choose some of the cells: the command names them, and a resumed run may have
    others, whose cells stay in its folder."""

    def missing(self) -> str | None:
        """What has to be installed before it can run, in words; None if nothing."""
        return None

    def environment(self, config: Config) -> dict[str, str]:
        """What its numbers depend on besides what every run records: other devices, packages."""
        return {}

    def machine(self, config: Config) -> Collection[str]:
        """Entries of `environment.json` in which all starts of a run must agree."""
        return ()

    def check_finished(self, config: Config, run: Run) -> None:
        """Refuse results of finished cells that a resumed run cannot go on with.

        Raises:
            RunError: If one is damaged, or was made by other rules; it names the file.
        """

    @abstractmethod
    def cells(self, config: Config) -> Sequence[str]:
        """The names of the cells, each good for a file's name."""

    @abstractmethod
    def run_cell(self, config: Config, cell: str, run: Run) -> dict[str, Any]:
        """Do one cell; the result is JSON without NaN."""

    @abstractmethod
    def summarise(self, config: Config, cells: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """The results of all cells as one record: everything that tables and figures show."""

    @abstractmethod
    def verdict(self, results: Mapping[str, Any]) -> str:
        """What the numbers say of the paper's claim, composed from the numbers."""

    @abstractmethod
    def tables(self, results: Mapping[str, Any], timing: Timing) -> list[Table]:
        """The tables, the paper's values beside ours; clock times come from `timing`."""

    @abstractmethod
    def figures(self, results: Mapping[str, Any]) -> list[Figure]:
        """The figures."""

    def merge(
        self, parts: Sequence[tuple[Mapping[str, Any], Timing]]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The results and clocks of several runs as those of one, for `skewflow collect`.

        Raises:
            RunError: If they cannot stand beside each other.
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
