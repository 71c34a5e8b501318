"""The memory that a step takes on a CPU for a while."""

from torch.profiler import ProfilerActivity, profile

from .timing import Step


def peak_bytes(step: Step) -> int:
    """Most bytes of tensors that a step holds at once, beyond those that there were before.

    What a step returns counts too, until it is dropped. torch's allocator tells of every tensor on
    the CPU; memory that other libraries take is not seen.

    Example:
        >>> import torch
        >>> peak_bytes(lambda: torch.zeros(1000).add_(1).sum().item())
        4012
    """
    step()  # what is made once is made now
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    held = most = 0
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        held += change
        most = max(most, held)
    return most
