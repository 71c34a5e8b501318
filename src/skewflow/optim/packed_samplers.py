"""The states of samplers as tensors and numbers whose shapes depend on the weight only.

`torch.distributed.checkpoint` saves nothing else in the state of an optimiser, and loads it into
tensors that a new optimiser already has.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..samplers import Sampler

ABSENT = -1
"""Value of entries that a sampler has not drawn yet."""

SHAPES: dict[str, Callable[[int], tuple[int, ...]]] = {
    "order": lambda d: (d,),
    "pairs": lambda d: (d * (d - 1) // 2, 3),
}
"""Entries that are not always present, and their largest size for d rows: the order of a sweep, and
for each pair of a family of matchings the number of its matching and its rows."""


def pack_samplers(samplers: Sequence[Sampler], d: int) -> dict[str, Any]:
    """The states of the samplers of a weight with d rows, by their numbers."""
    return {
        str(number): {key: _pack(key, value, d) for key, value in sampler.state_dict().items()}
        for number, sampler in enumerate(samplers)
    }


def unpack_samplers(packed: Any, num: int) -> list[dict[str, Any]]:
    """The states of `count` samplers; older versions saved them as a list."""
    if isinstance(packed, Mapping):
        states = [packed.get(str(number), {}) for number in range(num)]
        return [{key: _unpack(key, value) for key, value in state.items()} for state in states]
    return list(packed)


def _pack(key: str, value: Any, d: int) -> Any:
    if isinstance(value, str):
        return torch.tensor(list(value.encode()), dtype=torch.uint8)
    if key not in SHAPES or not (value is None or isinstance(value, Tensor | list)):
        return value
    table = torch.full(SHAPES[key](d), ABSENT)
    if isinstance(value, list):
        numbered = [torch.nn.functional.pad(m, (1, 0), value=i) for i, m in enumerate(value)]
        value = torch.cat(numbered)
    if value is not None:
        table[: len(value)] = value
    return table


def _unpack(key: str, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.dtype == torch.uint8:
        return bytes(value.tolist()).decode()
    if key not in SHAPES:
        return value
    if value.ndim == 1:
        present = value[value != ABSENT]
        return present if len(present) else None
    pairs = value[value[:, 0] != ABSENT]
    if not len(pairs):
        return None
    sizes = torch.bincount(pairs[:, 0])
    return [matching[:, 1:] for matching in torch.split(pairs, sizes.tolist())]
