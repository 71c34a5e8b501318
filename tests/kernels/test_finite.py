"""The check of gradients, on every layout and wherever the bad entry is."""

import pytest
import torch

from skewflow.kernels._runtime.finite import CHUNK, is_usable
from skewflow.kernels.update import LARGEST_GRADIENT


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e38, -1e38])
def test_one_bad_entry_is_found_wherever_it_is(bad, dtype):
    most = LARGEST_GRADIENT[dtype]
    bad = bad if abs(bad) != 1e38 else bad / 1e38 * 1.01 * most
    flat = torch.full((2 * CHUNK + 5,), 0.99 * most, dtype=dtype)
    for place in (0, CHUNK - 1, CHUNK, 2 * CHUNK + 4):
        assert is_usable(flat)
        good, flat[place] = flat[place].item(), bad
        assert not is_usable(flat), place
        flat[place] = good


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_torch_looks_at_the_entries_where_their_norm_is_too_large(dtype):
    G = torch.full((1000,), 0.9 * LARGEST_GRADIENT[dtype], dtype=dtype)
    assert is_usable(G, by_torch=True) and is_usable(G[:0], by_torch=True)
    for bad in (torch.nan, torch.inf, -torch.inf):
        G[7] = bad
        assert not is_usable(G, by_torch=True)


@pytest.mark.parametrize("layout", ["transposed", "strided", "channels_last", "expanded"])
def test_memory_that_is_not_the_gradients_does_not_count(layout):
    memory = torch.ones(6, 8, 4, 4)
    G = {
        "transposed": memory[0, 0].mT,
        "strided": memory[0, 0, ::2, 1:3],
        "channels_last": memory.to(memory_format=torch.channels_last),
        "expanded": torch.ones(1).expand(5, 5),
    }[layout]
    assert is_usable(G)
    if layout == "strided":
        memory[0, 0, 1, 0] = torch.nan
        assert is_usable(G)
    if layout != "expanded":
        G[-1, -1] = torch.inf
        assert not is_usable(G)
