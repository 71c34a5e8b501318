"""The same evolution strategy, with directions that JAX draws on its device."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skewflow.es import EvolutionStrategy, Generation


@dataclass(frozen=True)
class MjxGeneration(Generation):
    """A generation whose directions are those of `mjx_noise`.

    Its centre is on the CPU, so that workers score it in the original environment; they evaluate
    only the centre and so never import JAX.
    """

    def _draw(self, number: int) -> Iterator[tuple[str, Tensor]]:
        from .mjx_noise import directions

        noise = directions(
            _shapes(self.centre), np.uint32(self.seed), self.number, np.array([number])
        )
        for name, p in self.centre.items():
            yield name, _tensor(noise[name][0]).to(p)


class MjxStrategy(EvolutionStrategy):
    """`EvolutionStrategy` for rollouts on a GPU.

    The step itself is that of torch's optimisers; only the draws and their weighted sum are JAX's.
    """

    def ask(self) -> MjxGeneration:
        """The next generation; asked twice, the same one."""
        asked = super().ask()
        if not isinstance(asked, MjxGeneration):
            kept = {f.name: getattr(asked, f.name) for f in fields(asked) if f.init}
            kept["centre"] = {name: p.cpu() for name, p in asked.centre.items()}
            asked = self._asked = MjxGeneration(**kept)
        return asked

    def gradients(self, generation: Generation, weights: np.ndarray) -> dict[str, Tensor]:
        """Minus the weighted sum of the directions, redrawn on the device."""
        from .mjx_noise import weighted_sum

        total = weighted_sum(
            _shapes(generation.centre),
            weights.astype(np.float32),
            np.uint32(generation.seed),
            generation.number,
        )
        return {name: -_tensor(total[name]).to(p) for name, p in self.params.items()}


def _shapes(params: dict[str, Tensor]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, tuple(p.shape)) for name, p in params.items())


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array))
