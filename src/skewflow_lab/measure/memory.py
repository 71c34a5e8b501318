"""The temporary memory of a step on a CPU."""

from torch.profiler import ProfilerActivity, profile

from .timing import Step


def peak_bytes(step: Step) -> int:
    """The largest number of bytes of tensors that a step allocates at once.

    The result of the step counts, too. torch's profiler reports every tensor on the CPU, but no
    memory of other libraries.

    Example:
        >>> import torch
        >>> peak_bytes(lambda: torch.zeros(1000).add_(1).sum().item())
        4012
    """
    step()  # allocations that happen only once happen now
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    held = most = 0
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        held += change
        most = max(most, held)
    return most
