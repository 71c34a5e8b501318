"""Files that are written whole or not at all, and whose damage is noticed when they are read."""

import hashlib
import io
import os
import secrets
from pathlib import Path
from typing import Any

import torch

from .errors import CheckpointError

_MARK = b"\nsha256 "
_ENDING = len(_MARK) + 64 + 1  # the mark, the digest in hexadecimal, the end of the line


def save_checked(path: Path, value: Any) -> None:
    """Write tensors and containers of them atomically, followed by the SHA-256 of the bytes.

    `torch.load` reads such a file as well, but does not check it.
    """
    buffer = io.BytesIO()
    torch.save(value, buffer)
    data = buffer.getvalue()
    write_atomically(path, data + _ending(data))


def load_checked(path: Path, way_out: str) -> Any:
    """Read what `save_checked` wrote, with all tensors on the CPU; no code in the file is run.

    Args:
        path: The file.
        way_out: What a user can do about a damaged file: the end of the message.

    Raises:
        CheckpointError: If the file is missing, damaged, cut short, or of another kind.
    """
    rule = f"{path} must be what skewflow saved, unchanged"
    try:
        whole = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{rule}: {error.strerror or error}. {way_out}") from error
    data, ending = whole[:-_ENDING], whole[-_ENDING:]
    if not ending.startswith(_MARK):
        raise CheckpointError(f"{rule}: it does not end with its checksum. {way_out}")
    if ending != _ending(data):
        raise CheckpointError(f"{rule}: its bytes do not match its checksum. {way_out}")
    try:
        return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:  # a file of another kind fails anywhere in the unpickler
        problem = f"it cannot be read ({type(error).__name__})"
        raise CheckpointError(f"{rule}: {problem}. {way_out}") from error


def _ending(data: bytes) -> bytes:
    return _MARK + hashlib.sha256(data).hexdigest().encode() + b"\n"


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader, a crash or a power cut never leaves half of it.

    Several processes may write the same file at once: the last one's content stays. A process that
    is killed while it writes may leave a file `.NAME.*.tmp` behind, which nobody reads.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(beside, "xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        _sync_folder(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the new name itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
