"""Networks trained side by side on the same batches; on CUDA each as a graph on its own stream.

A deep narrow network keeps a large GPU waiting for its next small kernel. Several of them, one on
each stream, fill it; and a step that is one graph does not wait for the host.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from skewflow.errors import NonFiniteGradientError

Precision = Literal["float32", "bf16"]


class Lane:
    """One network with its optimisers.

    Args:
        model: The network, on its device; its orthogonal weights are marked.
        optimizers: Optimisers that together step all of its parameters.
        precision: Precision of products in the network; "bf16" uses autocast.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        precision: Precision = "float32",
    ) -> None:
        self.model, self.optimizers, self._precision = model, list(optimizers), precision
        self.device = next(model.parameters()).device
        self._sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        self._seen = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self.diverged = False
        """Whether a gradient of an orthogonal weight was not finite."""

    def set_lr(self, factor: float) -> None:
        """Set the learning rates to the initial ones times a factor.

        This discards a graph that was captured with other rates.
        """
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = factor * group.setdefault("initial_lr", group["lr"])
        self._graph = None

    def step(self, x: Tensor, y: Tensor) -> None:
        """Take a training step, unless an earlier gradient of the lane was not finite."""
        if self.diverged:
            return
        self.model.zero_grad(set_to_none=True)
        with self._autocast():
            logits = self.model(_laid_out(x))
            loss = nn.functional.cross_entropy(logits, y)
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            correct = (logits.argmax(1) == y).sum()
            self._sums += torch.stack([loss.detach().double() * len(y), correct.double()])
        try:
            for optimizer in self.optimizers:
                optimizer.step()
        except NonFiniteGradientError:
            self.diverged = True

    def replay(self, x: Tensor, y: Tensor, stream: torch.cuda.Stream) -> None:
        """Take the step as a graph, which always reads the batch from these addresses."""
        if self.diverged:
            return
        if self._graph is None:
            torch.cuda.synchronize(self.device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                self.step(x, y)
            self._graph = graph
        self._graph.replay()

    def count(self, num: int) -> None:
        """Add to the number of images seen."""
        self._seen += num

    def totals(self) -> dict[str, float]:
        """The mean loss and accuracy over the batches since the last call."""
        loss, correct = (self._sums / max(self._seen, 1)).tolist()
        self._sums.zero_()
        self._seen = 0
        return {"loss": loss, "accuracy": correct}

    @torch.no_grad()
    def accuracy(self, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
        """The accuracy of the network in evaluation mode."""
        self.model.eval()
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        num = 0
        with self._autocast():
            for x, y in batches:
                correct += (self.model(_laid_out(x)).argmax(1) == y).sum()
                num += len(y)
        self.model.train()
        return correct.item() / num

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed lane needs."""
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        return {"model": self.model.state_dict(), "optimizers": states, "diverged": self.diverged}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.model.load_state_dict(state["model"])
        self.diverged = state["diverged"]
        for optimizer, its in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(its)
        self._graph = None

    def _autocast(self) -> torch.autocast:
        half = self._precision == "bf16"
        # A cast weight must not outlive the graph whose memory it is in.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=half, cache_enabled=False)


class SideBySide:
    """Lanes that see the same batches.

    On CUDA the first step of every epoch runs without a graph: it allocates buffers, compiles, and
    lets FlowSGD check its drift, which a graph cannot. The other steps replay a graph.
    """

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = list(lanes)
        self._on_cuda = lanes[0].device.type == "cuda"
        self._streams: list[torch.cuda.Stream] = []
        self._place: tuple[Tensor, Tensor] | None = None
        if self._on_cuda:
            device = lanes[0].device
            self._streams = [torch.cuda.Stream(device) for _ in lanes]  # type: ignore[no-untyped-call]

    def train_epoch(
        self, batches: Iterable[tuple[Tensor, Tensor]], only: int | None = None
    ) -> None:
        """Train every lane, or only one of them, by one step on every batch."""
        numbers = range(len(self.lanes)) if only is None else [only]
        for number, (x, y) in enumerate(batches):
            if self._on_cuda:
                self._step_on_cuda(x, y, numbers, replays=number > 0)
            else:
                for n in numbers:
                    self.lanes[n].step(x, y)
            for n in numbers:
                self.lanes[n].count(len(y))
        if self._on_cuda:
            torch.cuda.synchronize()

    def _step_on_cuda(self, x: Tensor, y: Tensor, numbers: Sequence[int], replays: bool) -> None:
        main = torch.cuda.current_stream()
        for n in numbers:  # their streams may still read the last batch
            main.wait_stream(self._streams[n])
        if self._place is None:
            self._place = torch.empty_like(_laid_out(x)), torch.empty_like(y)
        for place, new in zip(self._place, (x, y), strict=True):
            place.copy_(new)
        for n in numbers:
            self._streams[n].wait_stream(main)
            with torch.cuda.stream(self._streams[n]):
                if replays:
                    self.lanes[n].replay(*self._place, self._streams[n])
                else:
                    self.lanes[n].step(*self._place)


def _laid_out(x: Tensor) -> Tensor:
    """The batch with the channels last, which makes convolutions on a CPU a quarter faster."""
    return x.contiguous(memory_format=torch.channels_last)
