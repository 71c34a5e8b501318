import pytest
import torch

# Small matrices gain nothing from threads, and on busy cores their barriers cost a hundredfold.
torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
