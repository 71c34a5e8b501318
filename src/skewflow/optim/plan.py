"""How the weights of one group are stepped: worked out once, and kept while nothing moves."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import NonFiniteGradientError
from ..kernels._runtime.graphs import Graphs
from ..kernels.block_step import has_kernel
from ..kernels.exact_polar import has_small_kernel
from ..kernels.update import LARGEST_GRADIENT, Update
from .auto import choice_for
from .drift import SMALL
from .executors.dense_batch import Lot
from .executors.fused_launches import Bucket
from .factored_gradient import formed
from .options import exact_retraction, is_fused
from .weight import Weight

SWITCHES = (
    "nesterov", "maximize", "block_size", "sampler", "retraction", "seed", "nonfinite", "natural",
    "foreach",
)  # fmt: skip
"""Options that a plan is made for; the others are numbers that a step takes."""


@dataclass
class Alone:
    """A weight that is stepped by itself, with its block size and its step's numbers."""

    weight: Weight
    size: int | str
    update: Update


@dataclass
class Plan:
    """The weights of a group: in buckets of fused CUDA launches, in lots, and one by one.

    Args:
        group: The group's options when it was made.
        update: Switches and numbers of a step with these options.
        owner: The group itself.
        params: All parameters of the group.
        places: What it takes for granted about each of them.
        buckets: Weights that CUDA kernels step together.
        lots: Weights of one shape that take the exact step together.
        rest: The others.
        checked: Those whose gradients are looked at before the step.
        skip: Leave out weights whose gradient is not finite.
        held: Tensors of the states that the launches know by address.
        states: Those of the weights, which are known, too.
    """

    group: dict[str, Any]
    update: Update
    owner: dict[str, Any]
    params: list[Tensor]
    places: list[tuple[Any, ...] | None]
    buckets: list[Bucket]
    lots: list[Lot]
    rest: list[Alone]
    checked: list[Weight]
    skip: bool
    held: list[tuple[dict[str, Any], str, Tensor]]
    states: list[tuple[Tensor, dict[str, Any]]]

    def __post_init__(self) -> None:
        self._bad: set[Weight] = set()
        self._exact = {weight for lot in self.lots for weight in lot.weights}

    def same_numbers(self, group: dict[str, Any]) -> bool:
        """Whether `update` still says what the options say."""
        return self.group == group and not isinstance(group["lr"], Tensor)

    def renumber(self, group: dict[str, Any], update: Update) -> None:
        """Go on with other numbers."""
        self.group, self.update = dict(group), update
        for one in self.rest:
            one.update = update.with_stream(one.weight.stream)

    def fits(self, group: dict[str, Any], states: Mapping[Tensor, dict[str, Any]]) -> bool:
        """Whether nothing has changed but numbers and the addresses of gradients."""
        params = group["params"]
        if self.owner is not group or len(params) != len(self.params):
            return False
        if any(p is not q for p, q in zip(params, self.params, strict=True)):
            return False
        if self.group != group and _switches(self.group) != _switches(group):
            return False
        if [place(p) for p in params] != self.places:
            return False
        if any(states.get(p) is not state for p, state in self.states):
            return False
        return all(state.get(key) is tensor for state, key, tensor in self.held)

    def draws_otherwise(self, group: dict[str, Any]) -> bool:
        """Whether samplers and generators made for this plan do not serve the group any more."""
        return any(self.group[key] != group[key] for key in ("sampler", "block_size", "seed"))

    def complain(self) -> None:
        """Raise if a gradient of an earlier step, on CUDA, was not finite."""
        for shape in self._shapes():
            shape.complain()

    def check(self) -> None:
        """Raise for gradients that cannot be used, or note them to be skipped."""
        self.complain()
        self._bad.clear()
        for weight in self.checked:
            self._check(weight)

    def _check(self, weight: Weight) -> None:
        from ..kernels._runtime.finite import (
            is_usable,
            unusable,
        )  # numba, not for those who only import

        grad = weight.p.grad
        assert grad is not None
        grad = grad.detach() if grad.requires_grad else grad
        if is_usable(grad, by_torch=weight in self._exact):
            return
        if self.skip:
            self._bad.add(weight)
        else:
            bad, most = int(unusable(grad).sum()), LARGEST_GRADIENT[grad.dtype]
            raise NonFiniteGradientError(
                f"the gradient of {weight.name} must be finite: {bad} of its {grad.numel()} "
                f"entries are NaN, infinite or above {most:.0e}, where products overflow. Nothing "
                "was changed; lower the learning rate, clip, or look for the overflow in the "
                'model; nonfinite="skip" leaves such weights out.'
            )

    def members(self) -> Iterator[Alone]:
        """All weights, each by itself."""
        for bucket in self.buckets:
            for weight in bucket.weights:
                yield Alone(weight, bucket.block_size, self.update.with_stream(weight.stream))
        for lot in self.lots:
            for weight in lot.weights:
                yield Alone(weight, "dense", self.update.with_stream(weight.stream))
        yield from self.rest

    def together(self) -> Iterator[list[Weight]]:
        """All weights, in lists that are looked at together: small ones of one shape."""
        for shape in self._shapes():
            if shape.weights[0].p.numel() <= SMALL:
                yield shape.weights
            else:
                yield from ([weight] for weight in shape.weights)
        for one in self.rest:
            yield [one.weight]

    def _shapes(self) -> list[Bucket | Lot]:
        return [*self.buckets, *self.lots]

    @property
    def left_out(self) -> Collection[Weight]:
        """Weights that this step does not move."""
        return self._bad


def make_plan(
    group: dict[str, Any],
    update: Update,
    weights: Sequence[Weight],
    states: Sequence[dict[str, Any]],
    count: Callable[[torch.device], Tensor],
    graphs: Callable[[torch.device], Graphs],
) -> Plan:
    """Sort the weights into buckets, lots and the rest.

    Args:
        group: The options.
        update: What a step with these options does.
        weights: Those with a gradient.
        states: Their states.
        count: The count of replayed steps on a device.
        graphs: What makes CUDA graphs there.
    """
    skip = group["nonfinite"] == "skip"
    buckets: dict[Any, list[tuple[Weight, dict[str, Any]]]] = defaultdict(list)
    lots: dict[Any, list[tuple[Weight, dict[str, Any]]]] = defaultdict(list)
    rest: list[Alone] = []
    for weight, state in zip(weights, states, strict=True):
        _refuse_sparse(weight)
        count(weight.p.device)
        if skip and "skipped" not in state:
            state["skipped"] = torch.zeros((), dtype=torch.int64, device=weight.p.device)
        size = choice_for(weight, group).size
        fused = is_fused(group["sampler"]) or size == "dense"
        retraction = exact_retraction(group, weight.p.device)
        key = _bucket_key(weight, state, size, update, retraction) if fused else None
        alone = id(weight) if group["foreach"] is False else None
        if key is not None:
            buckets[(*key, alone)].append((weight, state))
        elif size == "dense":
            large = id(weight) if weight.p.numel() > SMALL else None
            lots[(*_lot_key(weight, state), alone or large)].append((weight, state))
        else:
            rest.append(Alone(weight, size, update.with_stream(weight.stream)))
    made = []
    for (device, size, *_), members in buckets.items():
        ours, theirs = zip(*members, strict=True)
        made.append(
            Bucket(ours, theirs, size, count(device), skip=skip, moments=update.beta2 is not None)
        )
    exact = []
    for (device, *_), members in lots.items():
        ours, theirs = zip(*members, strict=True)
        exact.append(Lot(ours, theirs, graphs(device), skip=skip))
    on_host = [w for lot in exact for w in lot.weights if w.p.device.type != "cuda"]
    checked = [*on_host, *(one.weight for one in rest)]
    params = list(group["params"])
    held: list[tuple[dict[str, Any], str, Tensor]] = [
        (state, key, state[key])
        for state in states
        for key in ("momentum_buffer", "master", "exp_avg_sq", "skipped")
        if key in state
    ]
    places = [place(p) for p in params]
    known = [(weight.p, state) for weight, state in zip(weights, states, strict=True)]
    return Plan(
        dict(group), update, group, params, places, made, exact, rest, checked, skip, held, known
    )


def _bucket_key(
    weight: Weight, state: dict[str, Any], size: int | str, update: Update, exact: str
) -> tuple[Any, ...] | None:
    """What weights of one bucket have in common; None where no CUDA kernel can reach them.

    An exact step is taken by the retraction `exact`.
    """
    if weight.p.device.type != "cuda":
        return None
    grad, points = weight.p.grad, weight.points(state)
    assert grad is not None
    stepped = [points, grad]
    stepped += [state["momentum_buffer"]] if "momentum_buffer" in state else []
    stepped += [weight.p] if points is not weight.p else []
    views = [weight.view(t) for t in stepped]
    if any(view.data_ptr() != t.data_ptr() for view, t in zip(views, stepped, strict=True)):
        return None  # the view is a copy
    if isinstance(size, int):
        reached = has_kernel(views[0], size, update.retraction)
    else:
        reached = has_small_kernel(views[0], exact, update)
    if not reached:
        return None
    layouts = tuple((view.stride(), view.dtype) for view in views)
    return (weight.p.device, size, views[0].shape, layouts, state.get("since"))


def _lot_key(weight: Weight, state: dict[str, Any]) -> tuple[Any, ...]:
    """What weights of one lot have in common."""
    points, grad = weight.points(state), weight.p.grad
    assert grad is not None
    has_momentum = "momentum_buffer" in state
    return (points.device, points.dtype, grad.dtype, weight.view.matrices, has_momentum)


def place(p: Tensor) -> tuple[Any, ...] | None:
    """What a plan takes for granted about a parameter and its gradient."""
    grad = formed(p)
    if grad is None:
        return None
    strides = None if grad.is_sparse else grad.stride()
    return (p.data_ptr(), p.stride(), strides, grad.dtype)


def _switches(group: dict[str, Any]) -> tuple[Any, ...]:
    return (group.get("momentum", 1) > 0, *[group.get(name) for name in SWITCHES])


def _refuse_sparse(weight: Weight) -> None:
    grad = weight.p.grad
    if grad is not None and grad.is_sparse:
        raise RuntimeError(
            f"this optimiser needs dense gradients: {weight.name} has a sparse one. Use "
            "`sparse=False` in the layer, or another optimiser for it."
        )
