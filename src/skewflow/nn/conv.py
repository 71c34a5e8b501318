"""A convolution whose flattened kernel is orthogonal (Sec. 6.2)."""

from torch import nn

from .init import orthogonal_


class OrthogonalConv2d(nn.Conv2d):
    r"""`torch.nn.Conv2d` whose flattened kernel starts Haar-distributed, marked as orthogonal.

    The kernel is flattened as in Sec. 6.2, to (kh*kw*C_in, C_out), and has orthonormal columns, or
    orthonormal rows if it is wide. **This is not an orthogonal convolution**: only the map from one
    patch to its outputs is orthogonal. Patches overlap, so the map from image to image neither
    preserves lengths nor is a contraction; with zero padding and dilation 1 its norm is at most
    $\sqrt{\lceil kh/stride\rceil \lceil kw/stride\rceil}$, the root of the number of patches that
    contain a pixel. It is orthogonal if patches do not overlap (stride = kernel size, no padding).
    The layer does not keep the kernel orthogonal; the optimiser does, see `optim.split_parameters`.

    Args:
        in_channels: As in `torch.nn.Conv2d`, like all arguments.
        out_channels: C_out.
        kernel_size: (kh, kw), or one number for both.
        groups: Only 1.

    Raises:
        ValueError: If `groups` is not 1.

    Example:
        >>> import torch
        >>> layer = OrthogonalConv2d(3, 16, 3, padding=1)
        >>> W = layer.weight.flatten(1)  # rows are the columns of the paper's matrix
        >>> bool(torch.allclose(W @ W.mT, torch.eye(16), atol=1e-5))
        True
    """

    orthogonal_names = ("weight",)

    def reset_parameters(self) -> None:
        """Draw the kernel from Haar measure and the bias as torch does, by the global generator."""
        if self.groups != 1:
            raise ValueError(
                f"`groups` must be 1: got {self.groups}. A grouped kernel is not one matrix "
                "(kh*kw*C_in, C_out): use one OrthogonalConv2d for each group of channels."
            )
        super().reset_parameters()
        orthogonal_(self.weight)
