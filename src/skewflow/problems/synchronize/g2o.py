"""Pose graphs in the text format of g2o."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from ..block_sdp.reference import Array
from .pose_graph import PoseGraph

_FIELDS = {"EDGE_SE2": 11, "EDGE_SE3:QUAT": 30, "VERTEX_SE2": 4, "VERTEX_SE3:QUAT": 8}
"""Numbers after each tag that is read."""

_SKIPPED = {"FIX"}
"""Tags without information about the relative poses."""


def read_g2o(path: str | Path) -> PoseGraph:
    """Read the measurements of a .g2o or .g2o.gz file (not in the paper).

    The information matrices become weights as in SE-Sync: for d dimensions tau is d over the trace
    of the covariance of the translation, kappa in space is 3 / 2 over the trace of that of the
    rotation, and in the plane the information of the angle. Poses that the file gives are not
    read: they are one guess of the answer.

    Raises:
        ValueError: If a line has an unknown tag, is cut short, or holds no number; the message
            names the line.
    """
    path = Path(path)
    opener = gzip.open if path.suffix == ".gz" else open
    edges: list[tuple[int, int]] = []
    rotations: list[Array] = []
    translations: list[Array] = []
    kappa: list[float] = []
    tau: list[float] = []
    try:
        with opener(path, "rt", encoding="ascii") as file:
            lines = file.read().split("\n")
    except (EOFError, gzip.BadGzipFile, UnicodeDecodeError, zlib.error) as error:
        raise ValueError(f"{path} is damaged or cut short: {error}. Get a whole copy.") from error
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0] in _SKIPPED or words[0].startswith("#"):
            continue
        place = f"{path}, line {number}"
        values = _values(words, place)
        if not words[0].startswith("EDGE"):
            continue
        try:
            R, t, k, s = (_plane if words[0] == "EDGE_SE2" else _space)(values[2:])
        except (np.linalg.LinAlgError, ZeroDivisionError) as error:
            raise ValueError(f"{place}: the information matrix cannot be inverted.") from error
        if not (k > 0 and s > 0):
            raise ValueError(f"{place}: the information matrix must be positive definite.")
        if not np.isfinite(R).all():
            raise ValueError(f"{place}: the quaternion must have a length above 0.")
        if rotations and len(R) != len(rotations[0]):
            raise ValueError(f"{place}: a file must hold poses in the plane or in space, not both.")
        edges.append((_label(words[1], place), _label(words[2], place)))
        rotations.append(R)
        translations.append(t)
        kappa.append(k)
        tau.append(s)
    if not edges:
        raise ValueError(f"{path} must hold at least one EDGE line: got none.")
    labels, renumbered = np.unique(np.array(edges), return_inverse=True)
    return PoseGraph(
        edges=renumbered.reshape(-1, 2),
        rotations=np.array(rotations),
        translations=np.array(translations),
        rotation_weights=np.array(kappa),
        translation_weights=np.array(tau),
        labels=labels,
    )


def _values(words: list[str], place: str) -> Array:
    tag, fields = words[0], words[1:]
    if tag not in _FIELDS:
        raise ValueError(f"{place}: unknown tag {tag!r}. Known are {', '.join(sorted(_FIELDS))}.")
    if len(fields) != _FIELDS[tag]:
        raise ValueError(
            f"{place}: {tag} must have {_FIELDS[tag]} numbers: got {len(fields)}. "
            "The file may be cut short."
        )
    try:
        values = np.array(fields, dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"{place}: {error}.") from error
    if not np.isfinite(values).all():
        raise ValueError(f"{place}: all numbers must be finite.")
    return values


def _label(word: str, place: str) -> int:
    """The number of a pose; some programs write numbers that a float64 does not hold."""
    try:
        label = int(word)
    except ValueError:
        raise ValueError(f"{place}: a pose must have a whole number: got {word!r}.") from None
    if abs(label) >= 2**63:
        raise ValueError(f"{place}: the number of a pose must be below 2^63: got {word}.")
    return label


def _precision(information: Array) -> float:
    """The size over the trace of the covariance; -1 if the information is not definite."""
    covariance = np.linalg.inv(information)
    definite = np.linalg.eigvalsh(information)[0] > 0
    return float(len(information) / np.trace(covariance)) if definite else -1.0


def _plane(v: Array) -> tuple[Array, Array, float, float]:
    c, s = np.cos(v[2]), np.sin(v[2])
    information = np.array([[v[3], v[4]], [v[4], v[6]]])
    tau = _precision(information)
    return np.array([[c, -s], [s, c]]), v[:2], float(v[8]), tau


def _space(v: Array) -> tuple[Array, Array, float, float]:
    with np.errstate(invalid="ignore"):
        x, y, z, w = v[3:7] / np.linalg.norm(v[3:7])
    R = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
    information = np.zeros((6, 6))
    information[np.triu_indices(6)] = v[7:]
    information = information + np.triu(information, 1).T
    tau = _precision(information[:3, :3])
    kappa = _precision(information[3:, 3:]) / 2
    return R, v[:3], kappa, tau
