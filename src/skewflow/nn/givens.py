"""A linear layer that is a product of rounds of Givens rotations (Sec. 9.9)."""

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .. import _validate
from ..errors import BlockSizeError, ShapeError
from ..kernels.rotate_rounds import rotate_rounds
from ..tournaments.families import circle
from ..tournaments.partitions import Partition


class GivensLinear(nn.Module):
    r"""The map $x \mapsto R_n \cdots R_1 x + b$ with rounds $R_r$ of disjoint Givens rotations.

    Each round turns the planes of a matching by trained angles, floor(d/2) of them, as the update
    of Eq. 9 does. The layer is orthogonal for any angles, so any optimiser may train it; weight
    decay pulls it towards the identity. The default schedule, `tournaments.round_robin`, has
    every plane once in d - 1 rounds (d for odd d), and then has as many angles as SO(d) has
    dimensions; few rounds mix all entries with far fewer angles. The backward pass turns results
    back instead of storing them: besides its output the layer keeps O(d) numbers a round. The
    paper's appendix names Givens networks (Sec. 9.9) and builds none.

    Args:
        d: Number of inputs and of outputs.
        num_rounds: n.
        schedule: The matching of each round: a family of `tournaments`, or other partitions of d
            rows into blocks of at most two. It is repeated from its start as often as needed. Rows
            that a matching leaves unpaired are paired in their order.
        bias: Add a trained vector.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        BlockSizeError: If d is below two, or a block of the schedule is larger.
        ShapeError: If a partition has another number of rows.
        ValueError: If `num_rounds` is below one or the schedule is empty.

    Example:
        >>> layer = GivensLinear(5, 3, bias=False)
        >>> x = torch.randn(7, 5)
        >>> bool(torch.allclose(layer(x).norm(dim=-1), x.norm(dim=-1), atol=1e-5))
        True
        >>> layer.angles.shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        d: int,
        num_rounds: int,
        schedule: Iterable[Partition] | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _validate.block_size(2, d)
        _validate.count(num_rounds, "num_rounds")
        self.d, self.num_rounds = d, num_rounds
        self._schedule = None if schedule is None else list(islice(schedule, num_rounds))
        self.pairs: Tensor
        self.register_buffer("pairs", None)  # by `reset_parameters`
        self.angles = nn.Parameter(torch.empty(num_rounds, d // 2, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(d, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the angles uniformly on the circle, and set the bias to zero.

        The schedule becomes that of the constructor again, as a layer needs after `to_empty`.
        """
        self.pairs = _pairs(self._schedule, self.d, self.num_rounds).to(self.angles.device)
        nn.init.uniform_(self.angles, -math.pi, math.pi)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """The turned vectors, in the dtype of `x`.

        Args:
            x: Vectors (*batch, d).

        Raises:
            ShapeError: If the last dimension is not d.
            DtypeError: If `x` is not real and floating.
        """
        _validate.floating(x, "x")
        if x.ndim < 1 or x.shape[-1] != self.d:
            raise ShapeError(
                f"`x` must have the shape (*batch, {self.d}): got {tuple(x.shape)}. "
                "The last dimension is the number of inputs."
            )
        y = rotate_rounds(x.reshape(-1, self.d), self.pairs, self.angles).reshape(x.shape)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    @property
    def weight(self) -> Float[Tensor, "d d"]:
        """The orthogonal matrix of the layer; gradients go through it."""
        identity = torch.eye(self.d, dtype=self.angles.dtype, device=self.angles.device)
        return rotate_rounds(identity, self.pairs, self.angles).t()

    def extra_repr(self) -> str:
        """The arguments that `print` shows."""
        return f"d={self.d}, num_rounds={self.num_rounds}, bias={self.bias is not None}"

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Refuse pairs that do not fit d; the layer is unchanged then."""
        found = state_dict.get(f"{prefix}pairs")
        if isinstance(found, Tensor) and not found.is_meta and not _is_schedule(found, self.d):
            raise ShapeError(
                f"`{prefix}pairs` must pair different rows of d={self.d} in each round: the state "
                "is that of a layer of another size, or damaged. Build the layer with its d."
            )
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _pairs(schedule: Sequence[Partition] | None, d: int, num_rounds: int) -> Int[Tensor, "n m 2"]:
    """The pairs of each round, on the CPU whatever torch's default device is."""
    if schedule is None:
        return circle(d, torch.arange(num_rounds, device="cpu") % (d - 1 + d % 2)).to(torch.int32)
    if not schedule:
        raise ValueError("`schedule` must hold a partition: got none. Omit it for a round robin.")
    rounds = [_completed(partition, d) for partition in schedule]
    return torch.stack([rounds[r % len(rounds)] for r in range(num_rounds)])


def _completed(partition: Partition, d: int) -> Int[Tensor, "m 2"]:
    """The pairs of a matching; rows that it leaves unpaired are paired in their order."""
    if partition.d != d:
        raise ShapeError(
            f"the partitions of `schedule` must have d={d} rows: got one of {partition.d}."
        )
    if max(partition.sizes) > 2:
        raise BlockSizeError(
            "the blocks of `schedule` must have at most two rows, one rotation for each: got one "
            f"of {max(partition.sizes)}. Use a family for block_size=2."
        )
    edges = partition.edges().cpu()
    unpaired = torch.ones(d, dtype=torch.bool, device="cpu")
    unpaired[edges.flatten()] = False
    rest = unpaired.nonzero().flatten()
    rest = rest[: len(rest) // 2 * 2].view(-1, 2)
    return torch.cat([edges, rest]).to(torch.int32)


def _is_schedule(pairs: Tensor, d: int) -> bool:
    """Whether each round has pairs of different rows of d."""
    if pairs.ndim != 3 or pairs.shape[1:] != (d // 2, 2) or pairs.is_floating_point():
        return False
    rows = pairs.flatten(1).sort(dim=1).values
    inside = rows.numel() == 0 or 0 <= int(rows.min()) <= int(rows.max()) < d
    return inside and bool((rows[:, 1:] != rows[:, :-1]).all())
