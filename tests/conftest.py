import jaxtyping
import pytest
import torch

# Small matrices gain nothing from threads, and on busy cores their barriers cost a hundredfold.
torch.set_num_threads(1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check shapes in each test, if pytest runs with `--jaxtyping-packages`, unless it opts out."""
    off = item.get_closest_marker("bad_input") or item.get_closest_marker("many_calls")
    jaxtyping.config.update("jaxtyping_disable", off is not None)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
