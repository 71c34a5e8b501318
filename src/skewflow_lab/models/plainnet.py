"""PlainNet: ResNet for CIFAR-10 without its shortcuts (Sec. 6.2, after Xie et al. 2017)."""

from jaxtyping import Float
from torch import Tensor, nn

from skewflow.nn import OrthogonalConv2d


class Layer(nn.Module):
    """Convolution, batch norm and ReLU."""

    def __init__(self, before: int, channels: int, stride: int, shift: float) -> None:
        super().__init__()
        self.conv = OrthogonalConv2d(before, channels, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        nn.init.constant_(self.norm.bias, shift)

    def forward(self, x: Float[Tensor, "b i h w"]) -> Float[Tensor, "b o _ _"]:
        """The activations."""
        return nn.functional.relu(self.norm(self.conv(x)), inplace=True)


class PlainNet(nn.Module):
    """3 x 3 convolutions with batch norm and ReLU, in three stages of doubling width.

    The first convolution and (depth - 2) / 3 in each stage are marked as orthogonal; the linear
    head is free. The second and third stage begin with a stride of 2.

    Args:
        depth: Number of layers, a multiple of 3 plus 2. PlainNet-110 has 109 convolutions.
        width: Channels of the first stage.
        classes: Number of outputs.
        shift: Initial bias of every batch norm.

    Example:
        >>> import torch
        >>> PlainNet(depth=8, width=4)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, depth: int = 110, width: int = 16, classes: int = 10, shift: float = 0.0
    ) -> None:
        super().__init__()
        if depth < 5 or (depth - 2) % 3:
            raise ValueError(
                f"`depth` must be 3 n + 2 with n >= 1: got {depth}. The paper's network has 110."
            )
        layers: list[nn.Module] = []
        before = 3
        for stage, layer in [(0, -1), *((s, i) for s in range(3) for i in range((depth - 2) // 3))]:
            channels = width * 2**stage
            stride = 2 if stage and layer == 0 else 1
            layers.append(Layer(before, channels, stride, shift))
            before = channels
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(before, classes)

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c"]:
        """The logits."""
        logits: Tensor = self.head(self.features(x).mean((2, 3)))
        return logits
