"""Keeps a call out of the graph of a compiled function."""

from collections.abc import Callable
from typing import Any

from torch._compile import _disable_dynamo

OUTSIDE = (
    "skewflow steps outside of compiled graphs, since its kernels read addresses. Call `step` "
    "outside of the compiled function, or compile it with fullgraph=False."
)


@_disable_dynamo  # torch.compiler.disable would import the compiler with the package
def outside_the_graph(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function without tracing it, because it reads addresses."""
    return function(*args, **kwargs)
