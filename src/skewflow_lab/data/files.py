"""Files of public data: found in a folder, fetched where there is a network, always checked."""

import hashlib
import logging
import os
from pathlib import Path

from ..runs.files import RunError


def data_folder() -> Path:
    """$SKEWFLOW_DATA, or the folder `data` here."""
    return Path(os.environ.get("SKEWFLOW_DATA", "data"))


def read_checked(path: Path, checksum: str) -> bytes:
    """The bytes of a file whose checksum, such as "md5:803d...", is right.

    Raises:
        RunError: If it cannot be read, or is not the file it should be.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error}.") from error
    check(raw, checksum, str(path))
    return raw


def check(raw: bytes, checksum: str, name: str) -> None:
    """The bytes have this checksum; errors call them `name`."""
    algorithm, expected = checksum.split(":")
    found = hashlib.new(algorithm, raw, usedforsecurity=False).hexdigest()
    if found != expected:
        raise RunError(
            f"{name} must have the {algorithm} checksum {expected}: its {len(raw)} bytes have "
            f"{found}, so it is damaged or cut short. Remove it and run again where there is a "
            "network, or copy a whole one to its place."
        )


def fetch(url: str, path: Path, checksum: str) -> None:
    """Download a file with this checksum, whole or not at all.

    Raises:
        RunError: If that fails; the message names both ways to get the file.
    """
    import pooch

    # With a checksum of our own to check, what it says about checksums would only confuse.
    pooch.get_logger().setLevel(logging.WARNING)
    bar = _Bar(f"fetch {path.name}")
    try:
        pooch.retrieve(
            url,
            known_hash=checksum,
            fname=path.name,
            path=path.parent,
            downloader=pooch.HTTPDownloader(progressbar=bar),
        )
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path} is missing, and {url} cannot be fetched: {error}. Either run again where "
            f"there is a network, or copy the file to {path.parent} from elsewhere; the folder "
            "with all data is that of the environment variable SKEWFLOW_DATA."
        ) from error
    finally:
        bar.close()


class _Bar:
    """The part of a progress bar that pooch calls, on rich."""

    def __init__(self, label: str) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

        self._progress = Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        self._task = self._progress.add_task(label, total=None)
        self._progress.start()

    @property
    def total(self) -> float | None:
        """Bytes in all."""
        return self._progress.tasks[0].total

    @total.setter
    def total(self, total: float) -> None:
        self._progress.update(self._task, total=total)

    def update(self, count: int) -> None:
        """So many bytes more."""
        self._progress.advance(self._task, count)

    def reset(self) -> None:
        """Back to none, with the total kept."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._progress.stop()
