"""Base of the optimisers on orthogonal matrices: the step, its plan, and the report."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from ..errors import NonFiniteError
from ..geometry.precision import no_autocast
from ..kernels._runtime.graphs import is_capturing
from ..kernels._runtime.torch_threads import Process, few_threads
from ..kernels.update import Update
from .auto import choice_for, explain
from .compiled_functions import OUTSIDE, outside_the_graph
from .executors.executor import Context, Executor
from .factored_gradient import FactoredGradient
from .gradient import GivenFactors, Gradient, refuse_strangers
from .large_angles import SELDOM
from .options import check_options, refuse_foreign_options
from .plan import Plan
from .report import Report, next_step, past
from .saved_optimizer import SavedOptimizer
from .weight import Weight, check_admitted


class OrthogonalOptimizer(SavedOptimizer):
    """Base of the optimisers; a subclass adds its options, its update and its state."""

    @staticmethod
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        """As in `torch.optim`; in a compiled function the step runs outside the graph."""
        recorded = torch.optim.Optimizer.profile_hook_step(func)

        @wraps(func)
        def step(self: OrthogonalOptimizer, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():
                torch._dynamo.graph_break(msg=OUTSIDE)
                return outside_the_graph(step, self, *args, **kwargs)
            return recorded(self, *args, **kwargs)

        return step

    def step(
        self, closure: Callable[[], Any] | None = None, *, factors: GivenFactors | None = None
    ) -> Any:
        r"""Take one step; every matrix stays orthogonal.

        On CUDA these steps do not wait for the device and can be captured in a CUDA graph: uniform
        blocks of up to 128 rows of float32 (64 with `retraction="cayley"`), pairs also of float64;
        factored steps (natural ones from H100 on); dense steps of float32, except Cayley's and
        those of `FlowAdam`. Dense steps of float64 can be captured, but are slow in a graph. Blocks
        of `AngleSGD` wait and cannot be captured. Outside a graph blocks wait at steps 1, 2, 4, 8,
        ... and every 256, where their angles are checked. Take a step before the capture, and
        capture again after `load_state_dict`. A graph keeps its learning rate and has no drift
        guard: take an occasional step outside the graph.

        Args:
            closure: Recomputes the loss and the gradients, as in `torch.optim`.
            factors: For weights without a gradient, the factors (A, B) of the gradient $AB^\top$,
                of the shapes (*batch, rows, r) and (*batch, columns, r). The exact step then costs
                about what the gradient would. `capture_factors` finds them. In float32 on CUDA a
                step that could turn a plane by more than 4 radians is cut to 4.

        Raises:
            FactorError: If factors do not fit; nothing was changed.
            NonFiniteGradientError: If a gradient holds NaN or infinity; `nonfinite="skip"` leaves
                such a parameter out instead. On the CPU nothing was changed. On CUDA the kernels
                report it without making the host wait, so a later call raises; until then they
                skip the rows that the gradient would spoil, and keep such entries out of the
                momentum.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        capturing = torch.cuda.is_initialized() and is_capturing()  # type: ignore[no-untyped-call]
        if capturing:
            self._shared.clock.check_capture()
        # A forked process would wait for ever for the threads that torch had in its parent.
        take_step = few_threads(0)(self._step) if Process.forked else self._step
        with torch.no_grad():
            if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
                with no_autocast():
                    take_step(factors or {}, capturing)
            else:
                take_step(factors or {}, capturing)
        return loss

    def _step(self, factors: GivenFactors, capturing: bool) -> None:
        clock, drift = self._shared.clock, self._shared.drift
        gradients = self._read(factors)
        if not capturing:
            self._notice_others(factors)
        plans = [self._plan(*each) for each in zip(self.param_groups, gradients, strict=True)]
        work = []
        for plan, found in zip(plans, gradients, strict=True):
            context = Context(plan.options, plan.update, found, clock, drift, capturing)
            work += [(executor, context) for executor in plan.executors]
        work.sort(key=lambda each: not each[0].sums)
        try:
            # At steps 1, 2, 4, 8, ... and then at intervals.
            seldom = not drift.checks & (drift.checks + 1) or not drift.checks % SELDOM
            self._prepare_all(work, check_angles=seldom and not capturing)
        except BaseException as error:
            for executor, _ in work:
                executor.undo()
            if type(error) is NonFiniteError:  # of a point, not of a gradient
                _name_written(executor for executor, _ in work)
            raise
        if not capturing:
            drift.checks += 1
        for executor, context in work:
            try:
                executor.step(context)
            except NonFiniteError:
                _name_written([executor])
                raise
        for weight in self._reader.multiplied:
            self.state[weight.p]["by_gradients"] = True
        clock.tick(capturing)
        for group, plan in zip(self.param_groups, plans, strict=True):
            group["step"] = plan.options["step"] = clock.done
        if not capturing:
            for plan in plans:
                every = plan.options["check_every"]
                if every and not drift.checks % every:
                    for members in plan.stacks():
                        drift.check(members, plan.options["seed"])
        self._writes.note()

    def _prepare_all(self, work: Sequence[tuple[Executor, Context]], *, check_angles: bool) -> None:
        """Prepare the steps, those with sums over processes first: if one refuses, all do."""
        rounds = self._shared.rounds
        for executor, context in work:
            try:
                executor.prepare(context)
            except Exception:
                if not executor.sums:
                    rounds.refuse()
                raise
        if check_angles:
            try:  # a warning may be an error, and on this process alone
                self._angles.read()
                self._angles.check(each for each in work if not each[0].sums)
            except Exception:
                rounds.refuse()
                raise
        if rounds.waiting:
            rounds.begin()
        if check_angles:
            self._angles.check(each for each in work if each[0].sums)

    def _read(self, factors: GivenFactors) -> list[Sequence[Gradient | None]]:
        """The gradients of each group: dense, in factors, or None."""
        if factors:
            refuse_strangers(factors, self._weights)
        self._reader.multiplied.clear()
        gradients: list[Sequence[Gradient | None]] = []
        for group in self.param_groups:
            found = [p.grad for p in group["params"]]
            if factors or FactoredGradient in map(type, found):
                plan = self._plans.get(id(group))
                if plan is None or not plan.same_numbers(group):
                    check_options(group)
                    check_admitted(group["params"], self._weights)
                found = self._reader.read(group, self._weights, factors, self.state)
            gradients.append(found)
        return gradients

    def _notice_others(self, factors: GivenFactors) -> None:
        """Detect writes of other code to the weights, and other seeds in other processes."""
        if self._writes.compare() or self._writes.copies:
            moving = {w for p, w in self._weights.items() if p.grad is not None or p in factors}
            self._writes.admit(moving, self.state)
        self._seeds.steps += 1
        if self._seeds.steps == self._seeds.next_try:
            self._seeds.compare(self._weights.values(), self.param_groups)

    def _plan(self, group: dict[str, Any], gradients: Sequence[Gradient | None]) -> Plan:
        """The plan by which this group is stepped."""
        plan = self._plans.get(id(group))
        if plan is None or not plan.fits(group, gradients, self.state):
            plan = self._plans[id(group)] = self._make_plan(group, gradients, plan)
        elif not plan.same_numbers(group):
            check_options(group)
            plan.renumber(group, self._update(group))
        return plan

    @torch.no_grad()
    def _make_plan(
        self, group: dict[str, Any], gradients: Sequence[Gradient | None], before: Plan | None
    ) -> Plan:
        if is_capturing():
            raise RuntimeError(
                "a step that is captured in a CUDA graph must be like the one before it: other "
                "parameters have gradients, or something has moved. Take such a step before the "
                "capture."
            )
        check_options(group)
        refuse_foreign_options(group, self.defaults)
        if before is not None:
            for executor in before.executors:
                executor.complain()
            self._leave(before)
        self._follow_replacements()
        check_admitted(group["params"], self._weights)
        for p, gradient in zip(group["params"], gradients, strict=True):
            if gradient is None:
                continue
            weight, state = self._weights[p], self.state[p]
            weight.check_shape()
            if group.get("scale", 1.0) != weight.scale:
                raise ValueError(
                    f"`scale` of a weight must stay: {weight.name} has {weight.scale:g}, its group "
                    f"{group['scale']:g}. Make a new optimiser for another length."
                )
            weight.move_buffers(state)
            if before is not None and before.draws_otherwise(group):
                state.pop("samplers", None)
                state.pop("generator", None)
            if isinstance(gradient, Tensor):
                self._prepare(group, weight)
        update = self._update(group)
        return Plan(group, gradients, self._weights, self.state, update, self._shared)

    @abstractmethod
    def _update(self, group: dict[str, Any]) -> Update:
        """The numbers of a step."""

    @abstractmethod
    def _prepare(self, group: dict[str, Any], weight: Weight) -> None:
        """Add the entries that the state of a weight with a dense gradient lacks."""

    @torch.no_grad()
    @no_autocast()
    def report(self) -> Report:
        """Say how each weight is stepped and why, in words and in numbers for loggers.

        Between `backward` and `step` the report also covers the next step. It moves nothing. It
        waits for the device, and reads the whole generator where a sampler or a dense step does, so
        call it occasionally, not at every step.
        """
        self._follow_replacements()
        for p, weight in self._weights.items():
            if weight.is_behind(self.state.get(p, {})):
                weight.renew_master(self.state[p])
        clock, drift, report = self._shared.clock, self._shared.drift, Report()
        by_factors = {
            member.weight: executor.explain(member)
            for plan in self._plans.values()
            for executor in plan.executors
            for member in executor.members
        }
        for group in self.param_groups:
            for p in group["params"]:
                weight = self._weights[p]
                size = choice_for(weight, group).size
                reason = explain(weight, group, by_factors.get(weight))
                report.add(weight, reason, past(weight, self.state.get(p, {}), size))
            grads = [p.grad for p in group["params"]]
            grads = [None if type(grad) is FactoredGradient else grad for grad in grads]
            if not any(grad is not None for grad in grads):
                continue
            plan = self._plan(group, grads)
            context = Context(plan.options, plan.update, grads, clock, drift, capturing=False)
            for executor in plan.executors:
                try:
                    executor.prepare(context)
                finally:
                    executor.undo()
                for member in executor.members:
                    if member not in executor.left_out:
                        reason = explain(member.weight, group, None)
                        numbers = next_step(member, context, executor.draws())
                        report.add(member.weight, reason, numbers)
        return report


def _name_written(executors: Iterable[Executor]) -> None:
    """Raise an error that names the weight, if other code has written one far from orthogonal."""
    for executor in executors:
        for member in executor.members:
            if not member.weight.is_sharded:  # all processes would have to call this
                member.weight.nearest()
