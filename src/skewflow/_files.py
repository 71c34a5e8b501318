"""Files that are written atomically, and checkpoints whose checksum is verified when read."""

import hashlib
import io
import os
import secrets
from pathlib import Path
from typing import Any

import torch

from .errors import CheckpointError

_MARK = b"\nsha256 "
"""Stands between the data and the hexadecimal digest in the last line of a file."""

_LINE_LENGTH = len(_MARK) + 64 + 1
"""Bytes of that line: the mark, 64 digits and the newline."""


def save_checked(path: Path, value: Any) -> None:
    """Write tensors and containers of them atomically, followed by the SHA-256 of the bytes.

    `torch.load` can read such a file too, but does not verify it.
    """
    buffer = io.BytesIO()
    torch.save(value, buffer)
    data = buffer.getvalue()
    write_atomically(path, data + _checksum_line(data))


def load_checked(path: Path, way_out: str) -> Any:
    """Read what `save_checked` wrote, with all tensors on the CPU; code in the file is not run.

    Args:
        path: The file.
        way_out: What a user can do about a damaged file; the last sentence of the message.

    Raises:
        CheckpointError: If the file is missing, damaged, cut short, or of another kind.
    """
    rule = f"{path} must be what skewflow saved, unchanged"
    try:
        whole = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{rule}: {error.strerror or error}. {way_out}") from error
    data, line = whole[:-_LINE_LENGTH], whole[-_LINE_LENGTH:]
    if not line.startswith(_MARK):
        raise CheckpointError(f"{rule}: it does not end with its checksum. {way_out}")
    if line != _checksum_line(data):
        raise CheckpointError(f"{rule}: its bytes do not match its checksum. {way_out}")
    try:
        return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:  # another kind of file can fail anywhere in the unpickler
        problem = f"it cannot be read ({type(error).__name__})"
        raise CheckpointError(f"{rule}: {problem}. {way_out}") from error


def _checksum_line(data: bytes) -> bytes:
    return _MARK + hashlib.sha256(data).hexdigest().encode() + b"\n"


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader, a crash or a power cut never leaves half of it.

    Several processes may write the same file at once; the last content stays. A process that is
    killed while it writes may leave a file `.NAME.*.tmp` behind, which is never read.
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
    """Write the folder to disk, so that the new name survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
