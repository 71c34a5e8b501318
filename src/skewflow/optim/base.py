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
from ..kernels._runtime.graphs import Graphs, is_capturing
from ..kernels.update import Update
from .auto import explain
from .checkpoint import Loaded, pack, pack_group, read_state
from .clock import Clock
from .compiled_functions import OUTSIDE, outside_the_graph
from .diagnosis import Diagnosis, Draws, diagnose
from .drift import Drift
from .executors.blocks import draw_all, step_alone
from .executors.low_rank import FactoredSteps
from .executors.sampled_blocks import Drawn, generator_of, samplers_of
from .factor_capture import is_anything_captured
from .factored_gradient import formed
from .foreign_writes import Watch
from .gradient import Factored, Factors, gather
from .options import check_options, exact_retraction, is_fused, refuse_foreign_options
from .plan import Alone, Plan, make_plan
from .process_seeds import Ranks
from .weight import Weight, check_admitted, check_kind


class Flow(torch.optim.Optimizer, ABC):
    """Base of the optimisers: everything but how a gradient becomes a direction."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self._weights: dict[Tensor, Weight] = {}
        self._plans: dict[int, Plan] = {}
        self._clock, self._drift = Clock(), Drift(0)
        self._graphs = cache(Graphs)
        self._factored = FactoredSteps()
        self._watch, self._ranks = Watch(), Ranks()
        self._incoming: Loaded | None = None
        super().__init__(params, defaults)

    @staticmethod
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        """As in `torch.optim`, but nothing is recorded where no profiler runs.

        The record takes as long as a small step of one weight.
        """
        recorded = torch.optim.Optimizer.profile_hook_step(func)

        @wraps(func)
        def step(self: Flow, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():
                torch._dynamo.graph_break(msg=OUTSIDE)
                return outside_the_graph(step, self, *args, **kwargs)
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
            weight = Weight(p, name, MatrixView.of(p, name), stream, self._clock.done)
            weight.check()
            admitted[p] = weight
            stream += weight.num_matrices
        self._weights.update(admitted)
        self._watch.add(admitted.values())

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
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        capturing = is_capturing()
        if capturing:
            self._clock.check_capture()
        self._factored.complain()
        with no_autocast():
            if factors or is_anything_captured():
                self._step_with_factors(factors, capturing)
            else:
                self._step_all((), capturing)
        return loss

    def _step_with_factors(self, factors: Factors | None, capturing: bool) -> None:
        # First they are checked, since a plan makes momentum for gradients.
        factored = gather(self.param_groups, self._weights, factors, self._check_options)
        self._factored.check(factored, self.state)
        for one in factored:
            self._clock.count(one.weight.p.device)
        as_gradients = self._factored.as_gradients(factored, self.state)
        given = [one.weight.p.grad for one in as_gradients]
        try:
            for one in as_gradients:
                one.weight.p.grad = self._factored.gradient(one)
            rest = [one for one in factored if one not in as_gradients]
            self._step_all(rest, capturing)
        finally:
            for one, grad in zip(as_gradients, given, strict=True):
                one.weight.p.grad = grad
        for one in as_gradients:
            self.state[one.weight.p]["by_gradients"] = True

    def _step_all(self, factored: Sequence[Factored], capturing: bool) -> None:
        if not capturing:
            if self._watch.look() or self._watch.halves:
                moving = {w for p, w in self._weights.items() if p.grad is not None}
                self._watch.admit(moving.union(one.weight for one in factored), self.state)
            self._ranks.compare(self._weights.values(), self.param_groups)
        plans = [self._plan(group) for group in self.param_groups]
        drawn = draw_all(plans, self.state, self._clock.time)
        for plan in plans:
            if plan.lots or plan.rest:
                with torch.no_grad():
                    self._step_group(plan, capturing, drawn)
            else:  # kernels know nothing of autograd
                self._step_group(plan, capturing, drawn)
        self._factored.kinds.clear()
        if factored:
            self._step_factored(factored)
        self._clock.tick(capturing)
        if not capturing:
            self._guard(plans, factored)
        self._watch.note()

    def explain(self) -> str:
        """What each weight gets, and why, in a line for each; `print` it."""
        return "\n".join(
            explain(self._weights[p], group, self._factored.kinds.get(p))
            for group in self.param_groups
            for p in group["params"]
        )

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
            self._leave(before)
        check_admitted(group["params"], self._weights)
        weights = [self._weights[p] for p in group["params"] if formed(p) is not None]
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
        return make_plan(group, update, weights, states, self._clock.count, self._graphs)

    @abstractmethod
    def _update(self, group: dict[str, Any]) -> Update:
        """The numbers of a step."""

    def _prepare(self, group: dict[str, Any], weight: Weight) -> None:
        """Make the state of a weight that is missing."""

    def _leave(self, plan: Plan) -> None:
        """Its weights have taken all steps up to now; those to come they may miss."""
        for one in plan.members():
            one.weight.present_until = self._clock.time(one.weight.p.device)

    def _step_group(self, plan: Plan, capturing: bool, drawn: dict[Weight, Drawn]) -> None:
        for bucket in plan.buckets:
            bucket.step(plan.update, self._clock.done, capturing, self._clock.captured)
        if capturing and plan.lots and plan.update.beta2 is not None:
            raise RuntimeError(
                "an exact step with second moments cannot be captured in a CUDA graph: its "
                "corrections need the count of steps on the host. Use a block size, or FlowSGD."
            )
        for lot in plan.lots:
            device = lot.weights[0].p.device
            counted, retraction = (
                partial(self._clock.time, device),
                exact_retraction(plan.group, device),
            )
            lot.step(plan.update, retraction, counted, plan.left_out, self._store)
        for one in plan.rest:
            if one.weight not in plan.left_out:
                time = self._clock.time(one.weight.p.device)
                draw = drawn.get(one.weight)
                step_alone(one, self.state[one.weight.p], time, draw, self._store)
        for weight in plan.left_out:
            self.state[weight.p]["skipped"] += 1

    @torch.no_grad()
    @no_autocast()
    def diagnose(self) -> list[Diagnosis]:
        """What the next step will do to each parameter that has a usable gradient; moves nothing.

        Call it between `backward` and `step`. It waits for the device, and reads all of the
        generator where a sampler or a dense step does.
        """
        for p, weight in self._weights.items():
            if weight.is_behind(self.state.get(p, {})):
                weight.renew_master(self.state[p])
        reports = []
        for plan in [self._plan(group) for group in self.param_groups]:
            for one in plan.members():
                if one.weight in plan.left_out:
                    continue
                step = self._clock.time(one.weight.p.device)
                draws = self._peek(plan.group, one)
                if one.size == "dense":
                    retraction: Any = exact_retraction(plan.group, one.weight.p.device)
                    one.update = replace(one.update, retraction=retraction)
                reports.append(diagnose(one, self.state[one.weight.p], step, draws))
        return reports

    def _peek(self, group: dict[str, Any], one: Alone) -> Draws | None:
        """Draws of the next steps of one weight, from copies; None where no sampler draws."""
        if is_fused(group["sampler"]) or not isinstance(one.size, int):
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
        steps = self._clock.total
        self._drift.settle(self._weights, self.state)
        for plan in self._plans.values():
            self._leave(plan)
        for p, weight in self._weights.items():
            state = self.state.get(p, {})
            if weight.is_behind(state):
                weight.renew_master(state)
            if "since" in state:
                state["since"] += steps - weight.present_until
            weight.present_until = steps
        return steps

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles; torch's own keeps only groups, state and defaults."""
        steps = self._settle()
        return {**super().__getstate__(), "_weights": self._weights, "_steps": steps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copied or unpickled optimiser; torch calls this in `load_state_dict`, too."""
        super().__setstate__(state)
        if "_weights" in state:
            steps = self.__dict__.pop("_steps")
            self._plans, self._clock, self._drift = {}, Clock(steps), Drift(steps)
            self._graphs = cache(Graphs)
            self._factored, self._incoming = FactoredSteps(), None
            self._watch, self._ranks = Watch(), Ranks()
            self._watch.add(self._weights.values())
        elif self._incoming is not None:
            self._take_over(self._incoming)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to give the same bits: plain data, safe to unpickle."""
        steps = self._settle()
        packed = super().state_dict()
        for group in packed["param_groups"]:
            pack_group(group, steps)
        for index, state in packed["state"].items():
            packed["state"][index] = {key: pack(value) for key, value in state.items()}
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; sampler objects stay those of this optimiser."""
        # The last of the hooks, so that it sees what the user's have made of the state.
        last = self.register_load_state_dict_pre_hook(lambda _, state: self._read(state))
        try:
            super().load_state_dict(state_dict)
        finally:
            last.remove()
            self._incoming = None

    def _read(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Check and unpack a state before anything is changed."""
        self._incoming = read_state(state_dict, self.param_groups, self._weights, self.defaults)
        return {**state_dict, "state": {}}  # torch would cast it

    def _take_over(self, loaded: Loaded) -> None:
        """Bring in a state, between torch's loading of the groups and the user's last hooks."""
        for group, sampler in zip(self.param_groups, loaded.samplers, strict=True):
            group.pop("step")
            group.pop("state_version", None)
            group["sampler"] = sampler
        self.state.update({p: state for p, state in loaded.states.items() if state})
        self._clock, self._drift = Clock(loaded.steps), Drift(loaded.steps)
        self._plans.clear()
        for weight in self._weights.values():
            weight.present_until = loaded.steps
        # Whoever loads the weights may do so before or after: their masters are compared.
        self._watch.suspects.update(w for w in self._weights.values() if w.is_half)
