"""MNIST in its four idx files."""

import gzip

import numpy as np
import torch
from torch import Tensor

from .files import data_folder, fetch, read_checked

URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
CHECKSUMS = {
    "train-images-idx3-ubyte.gz": (
        "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    "train-labels-idx1-ubyte.gz": (
        "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
    ),
}
FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}


def has_mnist() -> bool:
    """Whether the four files are in $SKEWFLOW_DATA/mnist."""
    return all((data_folder() / "mnist" / name).exists() for name in CHECKSUMS)


def load_mnist(split: str) -> tuple[Tensor, Tensor]:
    """Pixels (n, 28, 28) and labels (n,) as bytes, from $SKEWFLOW_DATA/mnist or the network.

    Raises:
        RunError: If a file is missing and cannot be downloaded, or is damaged.
    """
    images, labels = FILES[split]
    return _idx(images), _idx(labels)


def _idx(name: str) -> Tensor:
    """A file of unsigned bytes in the idx format: magic number, sizes, entries."""
    path = data_folder() / "mnist" / name
    if not path.exists():
        fetch(URL + name, path, CHECKSUMS[name])
    raw = gzip.decompress(read_checked(path, CHECKSUMS[name]))
    ndim = raw[3]
    sizes = np.frombuffer(raw, ">u4", ndim, 4).astype(int)
    entries = np.frombuffer(raw, np.uint8, offset=4 + 4 * ndim)
    return torch.from_numpy(entries.reshape(sizes).copy())
