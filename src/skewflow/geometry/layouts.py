"""Which weights are convolutions: their modules know it, and write it down on the parameter.

A shape does not tell: (16, 3, 5) is a one-dimensional convolution or a batch of 16 matrices, and
(8, 4, 3, 3) a convolution from 4 to 8 channels or a transposed one from 8 to 4. Optimisers are
given parameters, not modules, so the layout is an attribute of the parameter, `orthogonal_layout`.
"""

from collections.abc import Collection
from typing import Literal

from torch import Tensor, nn

from ..errors import ShapeError

Layout = Literal["convolution", "transposed convolution"]

LAYOUTS = ("convolution", "transposed convolution")
"""A weight (C_out, C_in, *kernel), and one (C_in, C_out, *kernel)."""

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def record_layouts(model: nn.Module, weights: Collection[Tensor]) -> None:
    """Write the layout of those weights that belong to torch's convolutions on the parameters.

    A layout that is there stays: a weight that two modules share is read as the first one reads
    it. `copy.deepcopy` drops attributes of parameters, so this is called whenever weights are
    taken from a model.

    Args:
        model: The model.
        weights: The orthogonal ones among its parameters.

    Raises:
        ValueError: If one of them is the kernel of a grouped convolution.

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
    """The layout that was recorded; else that of four and more dimensions is a convolution's."""
    recorded: Layout | None = getattr(weight, "orthogonal_layout", None)
    if recorded is None and weight.ndim > 3:
        return "convolution"
    return recorded


def refuse_convolution(X: Tensor) -> None:
    """A parameter that optimisers read as a convolution is no batch of matrices."""
    if isinstance(X, nn.Parameter) and layout_of(X) is not None:
        raise ShapeError(
            "`X` must be a matrix or a batch of them: got a parameter of shape "
            f"{tuple(X.shape)}, which optimisers read as a convolution weight. Measure it with "
            "`skewflow.nn.orthogonality_error` or project it with `skewflow.nn.project_`; a batch "
            "of matrices goes in as `X.detach()`."
        )


def _refuse_groups(module: nn.Module, name: str) -> None:
    if module.groups != 1:
        raise ValueError(
            f"{name} must be the kernel of a convolution with groups=1 to be orthogonal: "
            f"{type(module).__name__} has groups={module.groups}, so that it is not one matrix "
            "(kernel * C_in, C_out). Use one convolution for each group of channels, or leave the "
            "weight to another optimiser."
        )
