"""The part of an optimiser that outlives its steps: admitted weights, and saved states."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..geometry.precision import no_autocast
from ..kernels._runtime.graphs import Graphs
from .auto import choice_for
from .checkpoint import Loaded, pack, settle, unpack
from .clock import Clock
from .drift import Drift
from .executors.executor import Shared
from .executors.low_rank import LowRankMemory
from .foreign_writes import ForeignWrites
from .gradient import FactorReader
from .initial_state import begin_state
from .large_angles import LargeAngles
from .old_states import STATE_VERSION
from .options import check_options, refuse_foreign_options
from .plan import Plan
from .process_seeds import SeedComparison
from .replaced_parameters import admitted_again, move_states
from .sharded.rounds import Rounds
from .weight import Weight, check_kind, weight_of


class SavedOptimizer(torch.optim.Optimizer, ABC):
    """An optimiser that admits orthogonal weights, and whose state is saved and resumed."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self._weights: dict[Tensor, Weight] = {}
        self._begin(0)
        super().__init__(params, defaults)

    def _begin(self, steps: int) -> None:
        """Make all attributes that a checkpoint does not hold."""
        self._plans: dict[int, Plan] = {}
        low_rank = LowRankMemory()
        self._shared = Shared(Clock(steps), Drift(steps), low_rank, cache(Graphs), Rounds())
        self._reader = FactorReader(low_rank.step)
        self._writes, self._seeds = ForeignWrites(), SeedComparison()
        self._angles = LargeAngles()
        self._incoming: Loaded | None = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, and check once that each is on the manifold."""
        super().add_param_group(param_group)
        try:
            self._admit(self.param_groups[-1], len(self.param_groups) - 1)
        except Exception:
            self.param_groups.pop()
            raise

    @no_autocast()
    def _admit(self, group: dict[str, Any], number: int) -> None:
        check_options(group)
        refuse_foreign_options(group, self.defaults)
        stream = sum(w.num_matrices for w in self._weights.values())
        names = group.get("param_names") or [
            f"parameter {i} of group {number}" for i in range(len(group["params"]))
        ]
        admitted = {}
        for p, name in zip(group["params"], names, strict=True):
            check_kind(p, name)
            weight = weight_of(p, name, stream, self._shared.clock.done, group.get("scale", 1.0))
            choice_for(weight, group)
            weight.check()
            admitted[p] = weight
            stream += weight.num_matrices
        self._weights.update(admitted)
        self._writes.add(w for w in admitted.values() if not w.is_sharded)
        self._begin_states(group)

    def _follow_replacements(self) -> None:
        """Continue with parameters by which a trainer has replaced others."""
        new = admitted_again(self._weights, self.param_groups)
        if new:
            move_states(self.state, self._weights, new)
            self._weights, self._writes = new, ForeignWrites()
            self._writes.add(w for w in new.values() if not w.is_sharded)
            self._plans.clear()
            for group in self.param_groups:
                self._begin_states(group)

    def _begin_states(self, group: dict[str, Any]) -> None:
        """Make the states of a group's weights, and what its saved options hold beyond torch's."""
        group["step"], group["state_version"] = self._shared.clock.done, STATE_VERSION
        for p in group["params"]:
            begin_state(self.state[p], group, self._weights[p])
            self._begin_moments(group, self._weights[p])

    @abstractmethod
    def _begin_moments(self, group: dict[str, Any], weight: Weight) -> None:
        """Add the moments that the state of a weight lacks, as zeros."""

    def _leave(self, plan: Plan) -> None:
        """Record that its weights have taken all steps so far; they may miss later ones."""
        for member in plan.members:
            member.weight.present_until = self._shared.clock.time(member.weight.p.device)

    def _settle(self) -> int:
        """Bring the state up to date on the host before it is saved; returns the steps done."""
        self._follow_replacements()
        steps = self._shared.clock.total
        self._shared.drift.settle()
        for plan in self._plans.values():
            self._leave(plan)
        settle(self._weights, self.state, steps)
        return steps

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles; torch's own keeps only groups, state and defaults."""
        steps = self._settle()
        return {**super().__getstate__(), "_weights": self._weights, "_steps": steps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copied or unpickled optimiser; torch calls this in `load_state_dict`, too."""
        super().__setstate__(state)
        if "_weights" in state:
            self._begin(self.__dict__.pop("_steps"))
            self._writes.add(w for w in self._weights.values() if not w.is_sharded)
        elif self._incoming is not None:
            self._take_over(self._incoming)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to give the same bits: plain data, safe to unpickle."""
        steps = self._settle()
        params = (p for group in self.param_groups for p in group["params"])
        return pack(super().state_dict(), steps, [self._weights[p].d for p in params])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state; sampler objects stay those of this optimiser."""
        # It must be the last hook, so that it sees the state as the user's hooks have left it.
        last = self.register_load_state_dict_pre_hook(lambda _, state: self._check_state(state))
        try:
            super().load_state_dict(state_dict)
        finally:
            last.remove()
            self._incoming = None

    def _check_state(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Check and unpack a state before anything is changed."""
        self._follow_replacements()
        loaded = unpack(state_dict, self.param_groups, self._weights, self.defaults)
        self._incoming = loaded
        groups = state_dict["param_groups"] if loaded is None else loaded.groups
        return {**state_dict, "state": {}, "param_groups": groups}  # torch would cast the states

    def _take_over(self, loaded: Loaded) -> None:
        """Install a state, between torch's loading of the groups and the user's last hooks."""
        self._shared.clock, self._shared.drift = Clock(loaded.steps), Drift(loaded.steps)
        self.state.update({p: state for p, state in loaded.states.items() if state})
        for group, sampler in zip(self.param_groups, loaded.samplers, strict=True):
            group["sampler"] = sampler
            self._begin_states(group)
        self._plans.clear()
        for weight in self._weights.values():
            weight.present_until = loaded.steps
        # Whoever loads the weights may do so before or after: their masters are compared.
        self._writes.suspects.update(w for w in self._weights.values() if w.has_master)
