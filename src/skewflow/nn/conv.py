"""A convolution whose flattened kernel is orthogonal (Sec. 6.2)."""

from torch import nn

from .init import orthogonal_


class OrthogonalConv2d(nn.Conv2d):
    r"""`torch.nn.Conv2d` whose flattened kernel starts Haar and is marked as orthogonal.

    The kernel is flattened as in Sec. 6.2, to (kh*kw*C_in, C_out), with orthonormal columns, or
    rows if there are fewer. **This is not an orthogonal convolution**: it is the map from one patch
    to its outputs that is orthogonal. Patches overlap, so the map from image to image neither
    keeps lengths nor is a contraction; with zero padding its norm is at most
    $\sqrt{\lceil kh/stride\rceil \lceil kw/stride\rceil}$ (at dilation 1), the root of the number
    of patches that hold one pixel. Where patches do not overlap (stride = kernel size, no padding)
    it is orthogonal. The layer does not keep the kernel orthogonal: the optimiser does, see
    `optim.split_parameters`.

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
        """Draw the kernel from Haar measure with torch's global generator, and the bias anew."""
        if self.groups != 1:
            raise ValueError(
                f"`groups` must be 1: got {self.groups}. A grouped kernel is not one matrix "
                "(kh*kw*C_in, C_out): use one OrthogonalConv2d for each group of channels."
            )
        super().reset_parameters()
        orthogonal_(self.weight)
