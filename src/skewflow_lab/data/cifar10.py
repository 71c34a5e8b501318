"""CIFAR-10 in its binary version."""

import tarfile

import numpy as np
import torch
from torch import Tensor

from ..runs.files import RunError, write_bytes
from .files import data_folder, fetch, read_checked

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE = "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
"""SHA-256 of the archive of 170,052,171 bytes; the md5 that its authors publish is
c32a1d4ab5d03f1284b67883e8d87530."""
FOLDER = "cifar-10-batches-bin"
CHECKSUMS = {
    "data_batch_1.bin": "md5:5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "md5:5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "md5:942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "md5:ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "md5:53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "md5:803d5f7f4d78ea53de84dbe85f74fb6d",
}
FILES = {"train": tuple(CHECKSUMS)[:5], "test": ("test_batch.bin",)}


def load_cifar10(split: str) -> tuple[Tensor, Tensor]:
    """Pixels (n, 3, 32, 32) and labels (n,) as bytes, from $SKEWFLOW_DATA or the network.

    The files lie in $SKEWFLOW_DATA/cifar-10-batches-bin, as the archive names that folder.

    Raises:
        RunError: If a file is missing and cannot be downloaded, or is damaged.
    """
    paths = [data_folder() / FOLDER / name for name in FILES[split]]
    if not all(path.exists() for path in paths):
        _fetch()
    raw = b"".join(read_checked(path, CHECKSUMS[path.name]) for path in paths)
    records = torch.from_numpy(np.frombuffer(raw, np.uint8).reshape(-1, 3073).copy())
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def _fetch() -> None:
    """Download the archive, and extract the files that are missing."""
    missing = [name for name in CHECKSUMS if not (data_folder() / FOLDER / name).exists()]
    archive = data_folder() / FOLDER / "cifar-10-binary.tar.gz"
    try:
        fetch(URL, archive, ARCHIVE)
    except RunError as error:
        raise RunError(f"{data_folder() / FOLDER} lacks {', '.join(missing)}. {error}") from error
    try:
        with tarfile.open(archive) as tar:
            for name in missing:
                member = tar.extractfile(f"{FOLDER}/{name}")
                assert (
                    member is not None
                )  # None is for folders, and the archive has the right checksum
                write_bytes(data_folder() / FOLDER / name, member.read())
    finally:
        archive.unlink()
