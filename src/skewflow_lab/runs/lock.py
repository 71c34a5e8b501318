"""A lock on a folder: one process at a time works in it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .files import RunError, cannot_write


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, which is created if it does not exist.

    The operating system drops the lock when the process ends, also when it is killed.

    Raises:
        RunError: If another process uses the folder, or the folder cannot be created.
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
                f"{folder} must be used by one process at a time: another one uses it. Wait for it "
                "or stop it, or write elsewhere with --out."
            ) from None
        except OSError:
            pass  # some network disks have no locks, and a run without a lock is better than none
        yield
    finally:
        os.close(descriptor)
