"""The layout of convolution weights, recorded on each parameter while its module is at hand.

A shape is ambiguous: (16, 3, 5) is a one-dimensional convolution or a batch of 16 matrices, and
(8, 4, 3, 3) is a convolution from 4 to 8 channels or a transposed one from 8 to 4. Optimisers
receive parameters, not modules, so the layout is the parameter's attribute `orthogonal_layout`.
"""

from collections.abc import Collection
from typing import Literal

from torch import Tensor, nn

from ..errors import ShapeError

Layout = Literal["convolution", "transposed convolution"]

LAYOUTS = ("convolution", "transposed convolution")
"""Their weights have the shapes (C_out, C_in, *kernel) and (C_in, C_out, *kernel)."""

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def record_layouts(model: nn.Module, weights: Collection[Tensor]) -> None:
    """Record the layout of each weight that is the kernel of one of torch's convolutions.

    A recorded layout stays, so a weight that two modules share has the layout of the first.
    `copy.deepcopy` drops attributes of parameters, so the layouts are recorded whenever weights
    are taken from a model.

    Args:
        model: The model.
        weights: Its orthogonal parameters.

    Raises:
        ValueError: If a weight is the kernel of a grouped convolution.

    Example:
        >>> layer = nn.Conv1d(3, 16, 5)
        >>> record_layouts(layer, [layer.weight])
        >>> layer.weight.orthogonal_layout
        'convolution'
    """
    wanted = {id(p) for p in weights}
    for path, module in model.named_modules():
        if not isinstance(module, CONVOLUTIONS + TRANSPOSED):
            continue
        for name, p in module.named_parameters(recurse=False):
            is_kernel = p.ndim == 2 + len(module.kernel_size)
            if id(p) in wanted and is_kernel and not hasattr(p, "orthogonal_layout"):
                _refuse_groups(module, f"{path}.{name}" if path else name)
                p.orthogonal_layout = LAYOUTS[isinstance(module, TRANSPOSED)]  # type: ignore[attr-defined]


def layout_of(weight: Tensor) -> Layout | None:
    """The recorded layout; without one, a weight of four or more dimensions is a convolution."""
    recorded: Layout | None = getattr(weight, "orthogonal_layout", None)
    if recorded is None and weight.ndim > 3:
        return "convolution"
    return recorded


def refuse_convolution(X: Tensor) -> None:
    """Raise if `X` is a parameter that optimisers read as a convolution, not as matrices."""
    if isinstance(X, nn.Parameter) and layout_of(X) is not None:
        raise ShapeError(
            "`X` must be a matrix or a batch of them: got a parameter of shape "
            f"{tuple(X.shape)}, which optimisers read as a convolution weight. Measure it with "
            "`skewflow.nn.orthogonality_error` or project it with `skewflow.nn.project_`. If it is "
            "a batch of matrices, pass `X.detach()`."
        )


def _refuse_groups(module: nn.Module, name: str) -> None:
    if module.groups != 1:
        raise ValueError(
            f"{name} must be the kernel of a convolution with groups=1 to be orthogonal: "
            f"{type(module).__name__} has groups={module.groups}, so that it is not one matrix "
            "(kernel * C_in, C_out). Use one convolution for each group of channels, or leave the "
            "weight to another optimiser."
        )
