"""Small networks with one orthogonal layer, and their training, a source of real gradients."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from skewflow.nn import orthogonal_
from skewflow.optim import FlowSGD

from ..data import Images
from ..runs.seeds import spawn


class OrthogonalMLP(nn.Module):
    """The network B tanh(W tanh(A x)) with W in O(d) and free A and B (as in Sec. 6.2)."""

    def __init__(self, num_pixels: int, d: int, seed: int) -> None:
        super().__init__()
        generator = spawn(seed, "weights")
        self.A = nn.Parameter(torch.randn(d, num_pixels, generator=generator) / num_pixels**0.5)
        self.W = nn.Parameter(orthogonal_(torch.empty(d, d), generator=generator))
        self.B = nn.Parameter(torch.randn(10, d, generator=generator) / d**0.5)

    def forward(self, x: Float[Tensor, "b p"]) -> Float[Tensor, "b 10"]:
        """The logits."""
        return torch.tanh(torch.tanh(x @ self.A.mT) @ self.W.mT) @ self.B.mT


class OrthogonalRegression(nn.Module):
    """Softmax regression whose p x 10 weights have orthonormal columns."""

    def __init__(self, num_pixels: int, seed: int) -> None:
        super().__init__()
        self.W = nn.Parameter(
            orthogonal_(torch.empty(num_pixels, 10), generator=spawn(seed, "weights"))
        )

    def forward(self, x: Float[Tensor, "b p"]) -> Float[Tensor, "b 10"]:
        """The logits, with a fixed scale, because the columns have length 1."""
        return 5 * x @ self.W


class Training:
    """Training by FlowSGD for W and SGD for the rest; batch t depends on seed and t only."""

    def __init__(
        self, model: nn.Module, images: Images, *, lr: float, batch: int, seed: int, **options: Any
    ) -> None:
        self.model, self.images, self.batch_size, self.seed = model, images, batch, seed
        W = model.get_parameter("W")
        free = [p for p in model.parameters() if p is not W]
        self.optimizers: list[torch.optim.Optimizer] = [FlowSGD([W], lr, seed=seed, **options)]
        if free:
            self.optimizers.append(torch.optim.SGD(free, lr=0.1))
        self.step = 0

    def run(
        self, num_steps: int, on_gradient: Callable[[int, float], None] = lambda step, loss: None
    ) -> None:
        """Take steps; each backward pass is followed by `on_gradient` of the step and the loss."""
        for _ in range(num_steps):
            loss = self.gradients()
            on_gradient(self.step, loss)
            for optimizer in self.optimizers:
                optimizer.step()
            self.step += 1

    def gradients(self) -> float:
        """Compute the loss on the next batch and the gradient of every parameter."""
        x, y = self._batch()
        self.model.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def _batch(self) -> tuple[Float[Tensor, "b p"], Int[Tensor, "b"]]:
        return self.images.batch(self.batch_size, spawn(self.seed, "batch", self.step))

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed training needs."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
