"""CombinedOptimizer: several optimisers as one, for trainers that take one (not in the paper)."""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from copy import deepcopy
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .base import OrthogonalOptimizer
from .report import Report


class CombinedOptimizer(Optimizer):
    """Several optimisers in one, for trainers that take a single optimiser.

    The groups of all optimisers stand in one list, so schedulers, clipping, `GradScaler`, hooks,
    and `torch.distributed.checkpoint` see one optimiser. Its state is that of one optimiser, too,
    with consecutive numbers for all parameters. A scheduler that takes one value for each group
    finds the groups in the order of the optimisers.

    Args:
        optimizers: The optimisers; each parameter belongs to one of them. Those of this package
            step first, since they raise before anything changes.

    Raises:
        ValueError: If the list is empty, one needs a closure, or two hold the same parameter.
        TypeError: If one is not an optimiser.

    Example:
        >>> from skewflow.nn import OrthogonalLinear
        >>> from skewflow.optim import FlowSGD, split_parameters
        >>> model = torch.nn.Sequential(OrthogonalLinear(4, 8), torch.nn.Linear(8, 4))
        >>> orthogonal, rest = split_parameters(model)
        >>> optimizer = CombinedOptimizer(
        ...     [FlowSGD(orthogonal, lr=0.1), torch.optim.AdamW(rest, lr=1e-3)]
        ... )
        >>> schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, total_iters=1)
        >>> model(torch.randn(2, 4)).square().sum().backward()
        >>> optimizer.step()
        >>> schedule.step()
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.05, 0.0005]
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = list(optimizers)
        _check(self.optimizers)
        self._begun = self._loading = False
        params = [p for o in self.optimizers for group in o.param_groups for p in group["params"]]
        super().__init__(params, self._shared_defaults())
        self._gather()

    def _shared_defaults(self) -> dict[str, Any]:
        """Options that all optimisers have, so that a scheduler may change them in every group."""
        first, *others = (o.defaults for o in self.optimizers)
        return {k: v for k, v in first.items() if all(k in other for other in others)}

    def _gather(self) -> None:
        """Take the groups of the optimisers, not copies, in their order."""
        self.param_groups = [group for o in self.optimizers for group in o.param_groups]

    @property  # type: ignore[override]
    def state(self) -> MutableMapping[Any, Any]:
        """The states of all parameters; none before the first step, when some are not made yet."""
        return _States(self.optimizers if self._begun else [])

    @state.setter
    def state(self, _: Any) -> None:
        """Ignore the value: torch sets an empty state while it makes an optimiser."""

    def _first_ours(self) -> list[tuple[int, Optimizer]]:
        """The numbered optimisers; those that raise before anything changes come first."""
        return sorted(
            enumerate(self.optimizers),
            key=lambda each: not isinstance(each[1], OrthogonalOptimizer),
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step of every optimiser.

        Args:
            closure: Recomputes the loss and the gradients; called once for all optimisers.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # torch.distributed.checkpoint makes states by a step with lr=0, maybe after it loaded the
        # weights: exact steps would correct their last digits.
        begins = not self._begun and all(float(group["lr"]) == 0 for group in self.param_groups)
        kept = [(p, p.detach().clone()) for p in self._orthogonal()] if begins else []
        for _, optimizer in self._first_ours():
            optimizer.step()
        for p, copy in kept:
            p.detach().copy_(copy)
        self._begun = True
        return loss

    def _orthogonal(self) -> Iterator[Tensor]:
        """The parameters of the optimisers of this package."""
        for optimizer in self.optimizers:
            if isinstance(optimizer, OrthogonalOptimizer):
                for group in optimizer.param_groups:
                    yield from group["params"]

    def report(self) -> Report:
        """The report of all orthogonal weights; see `FlowSGD.report`.

        If weights of several optimisers have the same name, the name of a later one gets the number
        of its optimiser as a prefix, as in "optimizer_1_parameter_0_of_group_0".
        """
        report = Report()
        for number, optimizer in enumerate(self.optimizers):
            if isinstance(optimizer, OrthogonalOptimizer):
                part = optimizer.report()
                taken = not report.reasons.keys().isdisjoint(part.reasons)
                prefix = f"optimizer_{number}_" if taken else ""
                report.update({prefix + key: value for key, value in part.items()})
                report.reasons.update({prefix + key: why for key, why in part.reasons.items()})
        return report

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the last of the optimisers."""
        if not self.param_groups:  # torch's constructor
            super().add_param_group(param_group)
            return
        params = param_group["params"]
        given = [params] if isinstance(params, Tensor) else list(params)
        new = {p[1] if isinstance(p, tuple) else p for p in given}
        if not new.isdisjoint(p for group in self.param_groups for p in group["params"]):
            raise ValueError(
                "a parameter must belong to one optimiser: the group has some that an optimiser "
                "already holds. Leave them out."
            )
        self.optimizers[-1].add_param_group({**param_group, "params": given})
        self._gather()

    def state_dict(self) -> dict[str, Any]:
        """The state of one optimiser that holds all groups."""
        first = self.register_state_dict_post_hook(lambda *_: self._joined(), prepend=True)
        try:
            return super().state_dict()
        finally:
            first.remove()

    def _joined(self) -> dict[str, Any]:
        """The states of all optimisers, with consecutive numbers for their parameters."""
        groups: list[dict[str, Any]] = []
        states: dict[int, Any] = {}
        for optimizer in self.optimizers:
            part, before = optimizer.state_dict(), sum(len(g["params"]) for g in groups)
            more = part.keys() - {"state", "param_groups"}
            if more:
                raise ValueError(
                    f"an optimiser of a combined one must save only 'state' and 'param_groups': "
                    f"{type(optimizer).__name__} saves {sorted(more)}, too. Save it by itself."
                )
            states |= {before + number: state for number, state in part["state"].items()}
            for group in part["param_groups"]:
                groups.append({**group, "params": [before + n for n in group["params"]]})
        return {"state": states, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state; either all of the optimisers load it or none."""
        # It must be the last hook, so that it sees the state as the user's hooks have left it.
        last = self.register_load_state_dict_pre_hook(lambda _, state: self._load(state))
        try:
            super().load_state_dict(state_dict)
        finally:
            last.remove()
            self._loading = False

    def _load(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Give each optimiser its part; torch has the errors for groups that do not fit."""
        saved = state_dict["param_groups"]
        if [len(g["params"]) for g in saved] != [len(g["params"]) for g in self.param_groups]:
            return state_dict
        parts = list(self._parts(saved, state_dict["state"]))
        before: list[tuple[Optimizer, dict[str, Any]]] = []
        try:
            for place, (number, optimizer) in enumerate(self._first_ours(), 1):
                if place < len(self.optimizers):
                    before.append((optimizer, deepcopy(optimizer.state_dict())))
                optimizer.load_state_dict(parts[number])
        except BaseException:
            for optimizer, part in before:
                optimizer.load_state_dict(part)
            raise
        self._loading = True
        self._begun = any(
            part["param_groups"][0]["step"] if isinstance(o, OrthogonalOptimizer) else part["state"]
            for o, part in zip(self.optimizers, parts, strict=True)
        )
        return {**state_dict, "state": {}}  # torch would cast it

    def _parts(self, saved: list[Any], states: dict[int, Any]) -> Iterator[dict[str, Any]]:
        """The state of each optimiser."""
        place = 0
        for optimizer in self.optimizers:
            groups = saved[place : place + len(optimizer.param_groups)]
            place += len(groups)
            numbers = [n for group in groups for n in group["params"]]
            own = {number: new for new, number in enumerate(numbers)}
            yield {
                "state": {own[n]: states[n] for n in numbers if n in states},
                "param_groups": [{**g, "params": [own[n] for n in g["params"]]} for g in groups],
            }

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles."""
        return {"defaults": self.defaults, "optimizers": self.optimizers, "_begun": self._begun}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copied or unpickled optimiser; torch calls this in `load_state_dict`, too."""
        if not self.__dict__.get("_loading", False):
            super().__setstate__({**state, "_loading": False})
        self._gather()


class _States(MutableMapping[Any, Any]):
    """The states of several optimisers; a write goes to the optimiser of the parameter."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers

    def _state_of(self, p: Any) -> Any:
        for o in self._optimizers:
            if p in o.state or any(p is q for group in o.param_groups for q in group["params"]):
                return o.state
        raise KeyError(p)

    def __getitem__(self, p: Any) -> Any:
        return self._state_of(p)[p]

    def __setitem__(self, p: Any, value: Any) -> None:
        self._state_of(p)[p] = value

    def __delitem__(self, p: Any) -> None:
        del self._state_of(p)[p]

    def __iter__(self) -> Iterator[Any]:
        return (p for o in self._optimizers for p in list(o.state))

    def __len__(self) -> int:
        return sum(len(o.state) for o in self._optimizers)


def _check(optimizers: Sequence[Any]) -> None:
    if not optimizers:
        raise ValueError("`optimizers` must hold at least one optimiser: got none.")
    held: set[Tensor] = set()
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"`optimizers` must hold optimisers of torch: got a {type(optimizer).__name__}."
            )
        closure = signature(type(optimizer).step).parameters.get("closure")
        if closure is not None and closure.default is Parameter.empty:
            raise ValueError(
                f"an optimiser of a combined one must step without a closure: "
                f"{type(optimizer).__name__} needs one, which moves its weights several times in a "
                "step. Step it by itself."
            )
        params = {p for group in optimizer.param_groups for p in group["params"]}
        if not held.isdisjoint(params):
            raise ValueError(
                f"a parameter must belong to one optimiser: {type(optimizer).__name__} holds some "
                "that another one holds, too. `split_parameters` gives two lists without overlap."
            )
        held |= params
