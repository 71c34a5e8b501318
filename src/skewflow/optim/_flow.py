"""What the optimisers on orthogonal matrices share: parameters, clock, drift guard, state."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from ..geometry.matrices import MatrixView
from ..geometry.precision import no_autocast
from ..kernels._graphs import Graphs
from ..kernels.update import Update
from ..samplers import Sampler
from ._alone import step_alone
from ._auto import auto_choice, told
from ._capture import drop, is_anything_recorded
from ._capturing import is_capturing, outside_the_graph
from ._drift import Drift
from ._factors import FactoredSteps
from ._gathered import Factored, Factors, gather
from ._loading import check_loadable, pack, unpack
from ._options import block_size_for, check_options, exact_retraction
from ._plan import Alone, Plan, make_plan
from ._sampled import generator_of, samplers_of
from ._weights import Weight
from .diagnosis import Diagnosis, Draws, diagnose


class Flow(torch.optim.Optimizer, ABC):
    """Base of the optimisers: everything but how a gradient becomes a direction.

    The number of steps is all the randomness of the fused steps needs besides the seed. The host
    counts them; what a CUDA graph replays is counted on the device, by the graph itself.
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self._weights: dict[Tensor, Weight] = {}
        self._plans: dict[int, Plan] = {}
        self._done = 0
        self._drift = Drift(0)
        self._replayed: dict[torch.device, Tensor] = {}
        self._graphs = cache(Graphs)
        self._captured = False
        self._factored = FactoredSteps()
        super().__init__(params, defaults)

    @staticmethod
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        """As in `torch.optim`, but nothing is recorded where no profiler runs.

        The record takes as long as a small step of one weight.
        """
        recorded = torch.optim.Optimizer.profile_hook_step(func)

        @wraps(func)
        def step(self: Flow, *args: Any, **kwargs: Any) -> Any:
            hooks = self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks
            hooks = hooks or _global_optimizer_pre_hooks or _global_optimizer_post_hooks
            if hooks or torch._C._autograd._profiler_enabled():
                return recorded(self, *args, **kwargs)
            return func(self, *args, **kwargs)

        return step

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; each is checked, once, to be on the manifold."""
        super().add_param_group(param_group)
        try:
            self._admit(self.param_groups[-1], len(self.param_groups) - 1)
        except Exception:
            self.param_groups.pop()
            raise

    def _admit(self, group: dict[str, Any], number: int) -> None:
        check_options(group)
        stream = sum(w.num_matrices for w in self._weights.values())
        names = group.get("param_names") or [
            f"parameter {i} of group {number}" for i in range(len(group["params"]))
        ]
        admitted = {}
        for p, name in zip(group["params"], names, strict=True):
            weight = Weight(p, name, MatrixView.of(p, name), stream)
            weight.check()
            admitted[p] = weight
            stream += weight.num_matrices
        self._weights.update(admitted)

    def step(self, closure: Callable[[], Any] | None = None, factors: Factors | None = None) -> Any:
        r"""Take one step; every matrix stays orthogonal.

        On CUDA nothing here waits for the device, and the step can be captured in a CUDA graph,
        where the kernels can do it: uniform blocks of up to 128 rows of float32 (64 with
        `retraction="cayley"`), pairs also of float64, factored (natural ones from H100 on) and,
        but for Cayley's, dense steps of float32 (of float64 only in a graph, where they are slow).
        Take a step before the capture, and capture again after `load_state_dict`. A graph keeps its
        learning rate and has no drift guard: take a step outside of it now and then.

        Args:
            closure: Recomputes the loss and the gradients, as in `torch.optim`.
            factors: For weights without a gradient its factors (A, B), of the shapes
                (*batch, rows, r) and (*batch, columns, r) for the gradient $AB^\top$: the exact
                step then costs about what the gradient would. `capture_factors` finds them. In
                float32 on CUDA a step that could turn a plane by more than 4 is cut to that.

        Raises:
            FactorError: If factors do not fit; nothing was changed.
            NonFiniteGradientError: If a gradient holds NaN or infinity; `nonfinite="skip"` leaves
                such a parameter out instead. On the CPU nothing was changed. On CUDA the kernels
                report it without making the host wait, so a later call raises; until then they
                leave the rows alone that the gradient would spoil, and keep what is not finite out
                of the momentum.
        """
        if torch.compiler.is_dynamo_compiling():
            return outside_the_graph(Flow.step, self, closure, factors)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        capturing = is_capturing()
        if capturing and len(self._replayed) > 1:
            raise RuntimeError(
                "a CUDA graph holds the steps of one device: this optimiser has parameters on "
                f"{', '.join(map(str, self._replayed))}. Make an optimiser for each."
            )
        self._factored.complain()
        with no_autocast():
            if factors or is_anything_recorded():
                self._step_with_factors(factors, capturing)
            else:
                self._step_all((), capturing)
        return loss

    def _step_with_factors(self, factors: Factors | None, capturing: bool) -> None:
        # First they are checked, since a plan makes momentum for gradients.
        factored = gather(self.param_groups, self._weights, factors, self._check_options)
        self._factored.check(factored, self.state)
        for one in factored:
            self._count(one.weight.p.device)
        formed = self._factored.as_gradients(factored, self.state, self._size_of)
        try:
            for one in formed:
                one.weight.p.grad = self._factored.gradient(one)
            rest = [one for one in factored if one not in formed] if formed else factored
            self._step_all(rest, capturing)
            self._factored.begun.update(one.weight for one in formed)
        finally:
            for one in formed:
                one.weight.p.grad = None
        drop(one.weight.p for one in factored)

    def _step_all(self, factored: Sequence[Factored], capturing: bool) -> None:
        plans = [self._plan(group) for group in self.param_groups]
        for plan in plans:
            if plan.lots or plan.rest:
                with torch.no_grad():
                    self._step_group(plan, capturing)
            else:  # kernels know nothing of autograd
                self._step_group(plan, capturing)
        self._factored.kinds.clear()
        if factored:
            self._step_factored(factored)
        self._tick(capturing)
        if not capturing:
            self._guard(plans, factored)

    def _size_of(self, group: dict[str, Any], weight: Weight) -> int | str:
        size = group["block_size"]
        return block_size_for(auto_choice(weight, group).size if size == "auto" else size, weight.d)

    def explain(self) -> str:
        """What each weight gets, and why, in a line for each; `print` it."""
        return "\n".join(
            told(self._weights[p], group, self._factored.kinds.get(p))
            for group in self.param_groups
            for p in group["params"]
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in `torch.optim`; factors that layers have kept are dropped, too."""
        super().zero_grad(set_to_none)
        drop(self._weights)

    def _check_options(self, group: dict[str, Any]) -> None:
        """Check the options of a group, unless its plan has been made for them."""
        plan = self._plans.get(id(group))
        known = plan is not None and plan.group["params"] is group["params"]
        if plan is None or not known or not plan.same_numbers(group):
            check_options(group)

    @torch.no_grad()
    def _step_factored(self, found: Sequence[Factored]) -> None:
        for one in found:
            update, state = self._plans[id(one.group)].update, self.state[one.weight.p]
            self._factored.step(one, update, state, self._store)

    def _plan(self, group: dict[str, Any]) -> Plan:
        """How this group is stepped; raises if a gradient cannot be used."""
        plan = self._plans.get(id(group))
        if plan is None or not plan.fits(group, self.state):
            plan = self._plans[id(group)] = self._make_plan(group, plan)
        elif not plan.same_numbers(group):
            check_options(group)
            plan.renumber(group, self._update(group))
        plan.check()
        return plan

    @torch.no_grad()
    def _make_plan(self, group: dict[str, Any], before: Plan | None) -> Plan:
        if is_capturing():
            raise RuntimeError(
                "a step that is captured in a CUDA graph must be like the one before it: other "
                "parameters have gradients, or something has moved. Take such a step before the "
                "capture."
            )
        check_options(group)
        if before is not None:
            before.complain()
        weights = [self._weights[p] for p in group["params"] if p.grad is not None]
        for weight in weights:
            weight.check_shape()
            state, points = self.state[weight.p], weight.points(self.state[weight.p])
            for key in ("momentum_buffer", "exp_avg_sq"):  # the parameter may have been moved
                if key in state and state[key].dtype != points.dtype:
                    state[key] = state[key].to(points)
                elif key in state and state[key].device != points.device:
                    state[key] = state[key].to(points.device)
            if before is not None and before.draws_otherwise(group):
                state.pop("samplers", None)
                state.pop("generator", None)
            self._prepare(group, weight)
        states = [self.state[weight.p] for weight in weights]
        update = self._update(group)
        size_of = partial(self._size_of, group)
        return make_plan(group, update, weights, states, self._count, self._graphs, size_of)

    @abstractmethod
    def _update(self, group: dict[str, Any]) -> Update:
        """The numbers of a step."""

    def _prepare(self, group: dict[str, Any], weight: Weight) -> None:
        """Make the state of a weight that is missing."""

    def _step_group(self, plan: Plan, capturing: bool) -> None:
        for bucket in plan.buckets:
            bucket.step(plan.update, self._done, capturing, self._captured)
        if capturing and plan.lots and plan.update.beta2 is not None:
            raise RuntimeError(
                "an exact step with second moments cannot be captured in a CUDA graph: its "
                "corrections need the count of steps on the host. Use a block size, or FlowSGD."
            )
        for lot in plan.lots:
            device = lot.weights[0].p.device
            counted, retraction = partial(self._time, device), exact_retraction(plan.group, device)
            lot.step(plan.update, retraction, counted, plan.left_out, self._store)
        for one in plan.rest:
            if one.weight not in plan.left_out:
                time = self._time(one.weight.p.device)
                step_alone(plan.group, one, self.state[one.weight.p], time, self._store)
        for weight in plan.left_out:
            self.state[weight.p]["skipped"] += 1

    @torch.no_grad()
    def diagnose(self) -> list[Diagnosis]:
        """What the next step will do to each parameter that has a usable gradient; moves nothing.

        Call it between `backward` and `step`. It waits for the device, and reads all of the
        generator where a sampler or a dense step does.
        """
        reports = []
        for plan in [self._plan(group) for group in self.param_groups]:
            for one in plan.members():
                if one.weight in plan.left_out:
                    continue
                step = self._time(one.weight.p.device)
                draws = self._peek(plan.group, one)
                if one.size == "dense":
                    retraction: Any = exact_retraction(plan.group, one.weight.p.device)
                    one.update = replace(one.update, retraction=retraction)
                reports.append(diagnose(one, self.state[one.weight.p], step, draws))
        return reports

    def _peek(self, group: dict[str, Any], one: Alone) -> Draws | None:
        """Draws of the next steps of one weight, from copies; None where no sampler draws."""
        if group["sampler"] == "uniform" or not isinstance(one.size, int):
            return None
        state = self.state[one.weight.p]
        samplers = deepcopy(samplers_of(state, group, one.weight, one.size))
        generator = generator_of(state, one.weight, one.update.seed).clone_state()
        return lambda b, W: samplers[b].sample(W, generator=generator)

    def _store(self, weight: Weight, X: Tensor) -> None:
        """Bring the stepped points into the parameter, where they are not the parameter itself."""
        p, state = weight.p, self.state[weight.p]
        stepped: Tensor = state.get("master", p)
        if X.untyped_storage().data_ptr() != stepped.untyped_storage().data_ptr():
            stepped.copy_(weight.view.restore(X))  # the memory had no such view, so X was a copy
        if stepped is not p:
            p.copy_(stepped)
        weight.written = p._version

    def _count(self, device: torch.device) -> Tensor:
        """Steps that graphs have replayed on a device; made before any capture."""
        if device not in self._replayed:
            if is_capturing():
                raise RuntimeError(
                    f"the first step on {device} cannot be captured in a CUDA graph: take a step "
                    "before the capture."
                )
            self._replayed[device] = torch.zeros((), dtype=torch.int64, device=device)
        return self._replayed[device]

    def _time(self, device: torch.device) -> int:
        """Steps done before this one, on the host."""
        return self._done + (int(self._count(device)) if self._captured else 0)

    def _tick(self, capturing: bool) -> None:
        # A graph holds the host's count as it was at the capture: from then on the devices count.
        self._captured |= capturing
        if self._captured:
            for replayed in self._replayed.values():
                replayed.add_(1)
        else:
            self._done += 1

    def _guard(self, plans: Sequence[Plan], factored: Sequence[Factored]) -> None:
        """Look at every parameter each `guard_every` steps; polish those that had drifted."""
        self._drift.looks += 1
        for plan in plans:
            every, seed = plan.group["guard_every"], plan.group["seed"]
            if every and not self._drift.looks % every:
                for weights in plan.together():
                    self._drift.look_at(weights, self.state, seed, self._store)
        for one in factored:
            self._drift.count(one.weight, self.state, one.group, self._store)

    @torch.no_grad()
    def _settle(self) -> int:
        """Bring everything that is to be saved up to date, and onto the host; the steps done."""
        steps = self._done
        if self._captured:
            steps += max(int(replayed) for replayed in self._replayed.values())
        self._drift.settle(self._weights, self.state)
        for p, weight in self._weights.items():
            if "master" in self.state.get(p, {}):
                weight.points(self.state[p])  # a new master where somebody wrote the parameter
        return steps

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles; torch's own keeps only groups, state and defaults."""
        steps = self._settle()
        return {**super().__getstate__(), "_weights": self._weights, "_done": steps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copied or unpickled optimiser; torch calls this in `load_state_dict`, too."""
        super().__setstate__(state)
        if "_weights" in state:
            self._plans, self._replayed, self._captured = {}, {}, False
            self._graphs = cache(Graphs)
            self._drift = Drift(self._done)
            self._factored = FactoredSteps()
            for weight in self._weights.values():
                weight.written = -1  # versions are counted anew in the copied parameter

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to give the same bits: plain data, safe to unpickle."""
        steps = self._settle()
        packed = super().state_dict()
        for group in packed["param_groups"]:
            group["step"] = steps
            if isinstance(group["sampler"], Sampler):
                group["sampler"] = type(group["sampler"]).__name__
        for index, state in packed["state"].items():
            packed["state"][index] = {key: pack(value) for key, value in state.items()}
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; sampler objects stay those of this optimiser."""
        ours = [self._weights[p] for group in self.param_groups for p in group["params"]]
        check_loadable(state_dict, ours, self.defaults)
        samplers = [group["sampler"] for group in self.param_groups]
        super().load_state_dict(deepcopy(state_dict))
        for group, sampler in zip(self.param_groups, samplers, strict=True):
            self._done = group.pop("step")
            group["sampler"] = sampler if isinstance(sampler, Sampler) else group["sampler"]
        self._drift = Drift(self._done)
        self._replayed.clear()
        self._captured = False
        self._plans.clear()
        numbers = [n for group in state_dict["param_groups"] for n in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for number, p in zip(numbers, params, strict=True):
            saved = state_dict["state"].get(number, {})
            group = next(g for g in self.param_groups if any(p is q for q in g["params"]))
            self.state[p] = unpack(saved, group, self._weights[p])
