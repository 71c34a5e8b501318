"""The block size behind "auto": the largest of those measured that cost at most twice SGD.

On CUDA they were measured on square matrices of 2048 rows and more, and below on the convolutions
of PlainNet-110.
"""

import json
from functools import cache
from importlib.resources import files

import torch


@cache
def _table() -> dict[str, list[list[int]]]:
    table: dict[str, list[list[int]]] = json.loads(
        files(__package__).joinpath("auto_table.json").read_text()
    )
    return table


def auto_block_size(d: int, device: torch.device) -> int:
    """The measured choice for matrices of d rows on this kind of device.

    The table lists (largest d, block size) by kind of device; above its end the last entry holds.
    """
    rows = _table()["cuda" if device.type == "cuda" else "cpu"]
    for largest, size in rows:
        if d <= largest:
            return size
    return rows[-1][1]
