"""Files of public data: read from a folder or downloaded, with their checksums verified."""

import hashlib
import logging
import os
from pathlib import Path

from ..runs.files import RunError


def data_folder() -> Path:
    """$SKEWFLOW_DATA, or the folder `data` of the working directory."""
    return Path(os.environ.get("SKEWFLOW_DATA", "data"))


def read_checked(path: Path, checksum: str) -> bytes:
    """Read a file and verify its checksum, such as "md5:803d...".

    Raises:
        RunError: If the file cannot be read, or has another checksum.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error}.") from error
    check(raw, checksum, str(path))
    return raw


def check(raw: bytes, checksum: str, name: str) -> None:
    """Check that the bytes have this checksum; errors call them `name`."""
    algorithm, expected = checksum.split(":")
    found = hashlib.new(algorithm, raw, usedforsecurity=False).hexdigest()
    if found != expected:
        raise RunError(
            f"{name} must have the {algorithm} checksum {expected}: its {len(raw)} bytes have "
            f"{found}, so it is damaged or cut short. Remove it and run again where there is a "
            "network, or replace it by an undamaged copy."
        )


def fetch(url: str, path: Path, checksum: str) -> None:
    """Download a file with this checksum, completely or not at all.

    Raises:
        RunError: If that fails; the message names both ways to get the file.
    """
    import pooch

    # We verify the checksum ourselves, so pooch's messages about checksums would only confuse.
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
            f"there is a network, or copy the file to {path.parent}; the environment variable "
            "SKEWFLOW_DATA names the folder of all data."
        ) from error
    finally:
        bar.close()


class _Bar:
    """A progress bar of rich with the methods that pooch calls."""

    def __init__(self, label: str) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

        self._progress = Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        self._task = self._progress.add_task(label, total=None)
        self._progress.start()

    @property
    def total(self) -> float | None:
        """The number of bytes of the file."""
        return self._progress.tasks[0].total

    @total.setter
    def total(self, total: float) -> None:
        self._progress.update(self._task, total=total)

    def update(self, count: int) -> None:
        """Add bytes that were downloaded."""
        self._progress.advance(self._task, count)

    def reset(self) -> None:
        """Set the count to zero and keep the total."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Stop the bar."""
        self._progress.stop()
