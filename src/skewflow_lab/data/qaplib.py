"""Quadratic assignment instances: QAPLIB's files, and planted ones whose optimum is known."""

import csv
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..runs.files import RunError
from .files import data_folder

Instances = Literal["qaplib", "planted"]
PLANTED = {f"planted{n}": n for n in (8, 12, 16)}
"""Names and sizes of the planted instances."""


@dataclass(frozen=True)
class Assignment:
    """The problem of finding the p with the least sum of A[i, j] B[p_i, p_j]."""

    name: str
    A: NDArray[np.float64]
    B: NDArray[np.float64]
    best: int
    """The least cost known."""


def default_instances() -> Instances:
    """The name "qaplib" if its files lie in $SKEWFLOW_DATA/qaplib, else "planted"."""
    return "qaplib" if (data_folder() / "qaplib" / "best_known.csv").exists() else "planted"


def instance_names(source: str) -> tuple[str, ...]:
    """The names of all instances, the smallest first.

    Raises:
        RunError: If the source is not known, or its files are missing.
    """
    if source == "planted":
        return tuple(PLANTED)
    rows = _best_known(source)
    return tuple(sorted(rows, key=lambda name: (int(rows[name]["n"]), name)))


def load_instance(source: str, name: str) -> Assignment:
    """An instance by name.

    Raises:
        RunError: If the name is not known, or its file is missing or damaged.
    """
    if name not in instance_names(source):
        raise RunError(f"`instances` must be names of {source}: got {name!r}.")
    if source == "planted":
        return _planted(name)
    row, path = _best_known(source)[name], data_folder() / "qaplib" / f"{name}.dat"
    try:
        numbers = np.array(path.read_text().split(), dtype=np.int64)
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}.") from error
    n = int(row["n"])
    if len(numbers) < 1 + 2 * n * n or numbers[0] != n:
        raise RunError(f"{path} must hold n = {n} and two n x n matrices: it is damaged.")
    A, B = numbers[1 : 1 + 2 * n * n].reshape(2, n, n).astype(np.float64)
    return Assignment(name, A, B, int(row["value_of_permutation"]))


def _planted(name: str) -> Assignment:
    """An instance whose B is -A with renamed rows.

    By the inequality of Cauchy and Schwarz no cost is below -|A|^2.
    """
    rng = np.random.default_rng(PLANTED[name])
    n = PLANTED[name]
    A = rng.integers(0, 20, (n, n))
    p = rng.permutation(n)
    B = np.empty_like(A)
    B[np.ix_(p, p)] = -A
    return Assignment(name, A.astype(np.float64), B.astype(np.float64), -int((A * A).sum()))


def _best_known(source: str) -> dict[str, dict[str, Any]]:
    if source != "qaplib":
        raise RunError(f'`data` must be "qaplib" or "planted": got {source!r}.')
    path = data_folder() / "qaplib" / "best_known.csv"
    try:
        with path.open(newline="") as file:
            return {row["instance"]: row for row in csv.DictReader(file)}
    except OSError as error:
        raise RunError(
            f"{path} is missing: {error}. Put the instances of QAPLIB (NAME.dat) and a table with "
            "the columns instance, n and value_of_permutation there, or use --data planted."
        ) from error
