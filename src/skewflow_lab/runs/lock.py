"""A lock on a folder: one process at a time works in it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .files import RunError, cannot_write


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, which is made if it is missing.

    The operating system drops the lock when the process ends, also when it is killed.

    Raises:
        RunError: If another process is at work in the folder, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"{folder} must have one process at work in it: another one is. Wait for it or "
                "stop it, or write elsewhere with --out."
            ) from None
        except OSError:
            pass  # some network disks have no locks, and a run there is worth more than a lock
        yield
    finally:
        os.close(descriptor)
