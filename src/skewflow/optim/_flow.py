"""What the optimisers on orthogonal matrices share: parameters, clock, drift guard, state."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from ..errors import NonFiniteGradientError, SamplingError
from ..geometry.matrices import MatrixView
from ..kernels._dispatch import step_
from ..kernels.permutation.reference import make_key, scalar
from ..kernels.update import Update, direction
from ..samplers import Sampler
from ._dense import dense_step
from ._guard import TOLERANCE, polish_, residual
from ._loading import check_loadable
from ._options import block_size_for, check_options, make_sampler
from ._sampled import sampled_step_
from ._weights import Weight


class Flow(torch.optim.Optimizer, ABC):
    """Base of the optimisers: everything but how a gradient becomes a direction.

    The clock, one int64 scalar per device, counts steps and is all the randomness of the fused
    steps needs besides the seed. It lives on the device, so that a captured step advances it.
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self._weights: dict[Tensor, Weight] = {}
        self._clocks: dict[torch.device, Tensor] = {}
        self._steps = 0
        self._pending: dict[Tensor, tuple[Tensor, torch.cuda.Event]] = {}
        super().__init__(params, defaults)

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

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; every matrix stays orthogonal.

        Args:
            closure: Recomputes the loss and the gradients, as in `torch.optim`.

        Raises:
            NonFiniteGradientError: If a gradient on the CPU holds NaN or infinity; nothing was
                changed. On CUDA gradients are not looked at, which would wait for the device: use
                a GradScaler, or check them yourself, where they may not be finite.
        """
        if torch.compiler.is_dynamo_compiling():
            return _outside_the_graph(Flow.step, self, closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        work = [(group, self._with_gradients(group)) for group in self.param_groups]
        for group, weights in work:
            self._check_gradients(group, weights)
        for group, weights in work:
            self._step_group(group, weights)
        for clock in self._clocks.values():
            clock.add_(1)
        self._steps += 1
        self._guard()
        return loss

    def _with_gradients(self, group: dict[str, Any]) -> list[Weight]:
        return [self._weights[p] for p in group["params"] if p.grad is not None]

    def _check_gradients(self, group: dict[str, Any], weights: Sequence[Weight]) -> None:
        for weight in weights:
            grad = weight.p.grad
            assert grad is not None
            if grad.is_sparse:
                raise RuntimeError(
                    f"{type(self).__name__} needs dense gradients: {weight.name} has a sparse one. "
                    "Use `sparse=False` in the layer, or another optimiser for it."
                )
            # A sum is not finite if an entry is not; the other way round it may have overflowed.
            if grad.device.type == "cpu" and not torch.isfinite(grad.sum()):
                bad = int((~torch.isfinite(grad)).sum())
                if bad:
                    raise NonFiniteGradientError(
                        f"the gradient of {weight.name} must be finite: {bad} of its "
                        f"{grad.numel()} entries are NaN or infinite. Nothing was changed; lower "
                        "the learning rate, clip, or look for the overflow in the model."
                    )

    @abstractmethod
    def _step_group(self, group: dict[str, Any], weights: Sequence[Weight]) -> None:
        """Step the weights of one group that have a gradient."""

    def _apply(
        self,
        group: dict[str, Any],
        weights: Sequence[Weight],
        buffers: Sequence[Tensor] | None,
        update: Update,
    ) -> None:
        """One step of `weights`, by the fused kernels where they can, else one by one."""
        buckets: dict[Any, list[tuple[Weight, Tensor, Tensor, Tensor | None]]] = defaultdict(list)
        for place, weight in enumerate(weights):
            p, state = weight.p, self.state[weight.p]
            grad = p.grad
            assert grad is not None
            X = weight.view(weight.points(state))
            G = weight.view(grad)
            M = None if buffers is None else weight.view(buffers[place])
            size = block_size_for(group["block_size"], weight.d, p.device)
            if size == "dense" or group["sampler"] != "uniform":
                self._apply_alone(group, weight, X, G, M, update, size)
                self._store(weight, X)
                continue
            strides = (X.stride(), G.stride(), None if M is None else M.stride())
            key = (p.device, X.dtype, p.dtype, G.dtype, X.shape, strides, size)
            buckets[key].append((weight, X, G, M))
        for (device, x_dtype, p_dtype, *_, size), bucket in buckets.items():
            half = p_dtype != x_dtype
            ours, Xs, Gs, Ms = zip(*bucket, strict=True)
            step_(
                Xs,
                Gs,
                None if buffers is None else Ms,
                [weight.view(weight.p) for weight in ours] if half else None,
                self._clock(device),
                update,
                [weight.stream for weight in ours],
                size,
            )
            for weight, X in zip(ours, Xs, strict=True):
                self._store(weight, X, written=half)

    def _apply_alone(
        self,
        group: dict[str, Any],
        weight: Weight,
        X: Tensor,
        G: Tensor,
        M: Tensor | None,
        update: Update,
        size: int | str,
    ) -> None:
        D, new = direction(G.to(X.dtype), M, update)
        if M is not None and new is not None:
            M.copy_(new)
        if size == "dense":
            X.copy_(dense_step(X, D, update.lr, group["retraction"]))
            return
        samplers = self._samplers(group, weight, size)
        sampled_step_(X, D, update, samplers, self._generator(weight, update.seed))

    def _store(self, weight: Weight, X: Tensor, written: bool = False) -> None:
        """Bring the stepped points into the parameter, where they are not the parameter itself."""
        p, state = weight.p, self.state[weight.p]
        stepped: Tensor = state.get("master", p)
        if X.untyped_storage().data_ptr() != stepped.untyped_storage().data_ptr():
            stepped.copy_(weight.view.restore(X))  # the memory had no such view, so X was a copy
        if stepped is not p and not written:
            p.copy_(stepped)
        weight.written = p._version

    def _samplers(self, group: dict[str, Any], weight: Weight, size: int | str) -> list[Sampler]:
        state = self.state[weight.p]
        if "samplers" not in state:
            assert isinstance(size, int)
            make = [make_sampler(group["sampler"], size) for _ in range(weight.num_matrices)]
            state["samplers"] = make
        samplers: list[Sampler] = state["samplers"]
        return samplers

    def _generator(self, weight: Weight, seed: int) -> torch.Generator:
        state = self.state[weight.p]
        if "generator" not in state:
            # Drawing happens on the CPU: these samplers decide on the host anyway.
            # Hashed, because a CPU generator takes only the low 32 bits of its seed.
            cpu = torch.device("cpu")
            key = make_key(scalar(seed, cpu), scalar(weight.stream, cpu), scalar(0, cpu))
            state["generator"] = torch.Generator().manual_seed(int(key))
        generator: torch.Generator = state["generator"]
        return generator

    def _clock(self, device: torch.device) -> Tensor:
        if device not in self._clocks:
            self._clocks[device] = torch.tensor(self._steps, dtype=torch.int64, device=device)
        return self._clocks[device]

    def _guard(self) -> None:
        """Look at every parameter each `guard_every` steps; polish those that had drifted."""
        for group in self.param_groups:
            every = group["guard_every"]
            if not every or self._steps % every or _capturing():
                continue
            for p in group["params"]:
                weight, state = self._weights[p], self.state[p]
                if p.grad is None:
                    continue
                X = weight.view(weight.points(state))
                seen = residual(X, group["seed"], weight.stream, self._clock(p.device))
                drift = self._later(weight, seen) if p.device.type == "cuda" else seen
                if drift is not None and drift.item() > TOLERANCE[X.dtype]:
                    polish_(X)
                    self._store(weight, X)
                    state["polishes"] = state.get("polishes", 0) + 1

    def _later(self, weight: Weight, drift: Tensor) -> Tensor | None:
        """Send this look's answer on its way to the host; return the last look's."""
        state = self.state[weight.p]
        last = self._arrived(weight)
        pinned = torch.empty((), dtype=drift.dtype, pin_memory=True)
        pinned.copy_(drift, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._pending[weight.p] = (pinned, event)
        state.pop("drift", None)
        return last

    def _arrived(self, weight: Weight) -> Tensor | None:
        """The answer of the last look; it was asked for many steps ago, so this does not wait."""
        if weight.p in self._pending:
            pinned, event = self._pending.pop(weight.p)
            event.synchronize()
            return pinned
        saved = self.state[weight.p].get("drift")
        return None if saved is None else torch.as_tensor(saved)

    @torch.no_grad()
    def _settle(self) -> None:
        """Bring everything that is to be saved up to date, and onto the host."""
        if self._clocks:
            self._steps = max(int(clock) for clock in self._clocks.values())
        for p in list(self._pending):
            arrived = self._arrived(self._weights[p])
            if arrived is not None:
                self.state[p]["drift"] = float(arrived)
        for p, weight in self._weights.items():
            if "master" in self.state.get(p, {}):
                weight.points(self.state[p])  # a new master where somebody wrote the parameter

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles; torch's own keeps only groups, state and defaults."""
        self._settle()
        return {**super().__getstate__(), "_weights": self._weights, "_steps": self._steps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copied or unpickled optimiser; torch calls this in `load_state_dict`, too."""
        super().__setstate__(state)
        if "_weights" in state:
            self._clocks, self._pending = {}, {}
            for weight in self._weights.values():
                weight.written = -1  # versions are counted anew in the copied parameter

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to give the same bits: plain data, safe to unpickle."""
        self._settle()
        packed = super().state_dict()
        for group in packed["param_groups"]:
            group["step"] = self._steps
            if isinstance(group["sampler"], Sampler):
                group["sampler"] = type(group["sampler"]).__name__
        packed["state"] = {
            index: {key: _pack(value) for key, value in state.items()}
            for index, state in packed["state"].items()
        }
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; sampler objects stay those of this optimiser."""
        ours = [self._weights[p] for group in self.param_groups for p in group["params"]]
        check_loadable(state_dict, ours)
        samplers = [group["sampler"] for group in self.param_groups]
        super().load_state_dict(deepcopy(state_dict))
        for group, sampler in zip(self.param_groups, samplers, strict=True):
            self._steps = group.pop("step")
            group["sampler"] = sampler if isinstance(sampler, Sampler) else group["sampler"]
        self._clocks.clear()
        self._pending.clear()
        numbers = [n for group in state_dict["param_groups"] for n in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for number, p in zip(numbers, params, strict=True):
            saved = state_dict["state"].get(number, {})
            group = next(g for g in self.param_groups if any(p is q for q in g["params"]))
            self.state[p] = self._unpack(saved, group, self._weights[p])

    def _unpack(
        self, saved: dict[str, Any], group: dict[str, Any], weight: Weight
    ) -> dict[str, Any]:
        """The saved state of one parameter, with the dtypes it was saved with.

        torch would cast every tensor to the parameter's dtype, and a float32 master to a half.
        """
        p, state = weight.p, dict(saved)
        weight.written = -1
        for key, value in saved.items():
            if key == "generator":
                state[key] = torch.Generator()
                state[key].set_state(value.cpu())
            elif key == "samplers":
                size = block_size_for(group["block_size"], weight.d, p.device)
                if not isinstance(size, int):
                    raise SamplingError(
                        f"the state holds samplers for {weight.name}, but block_size is {size!r}. "
                        "Make the optimiser with the options it was saved with."
                    )
                state[key] = [make_sampler(group["sampler"], size) for _ in value]
                for sampler, inner in zip(state[key], value, strict=True):
                    sampler.load_state_dict(inner)
            elif isinstance(value, Tensor):
                state[key] = value.detach().clone().to(p.device)
        return state


def _pack(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, list):
        return [item.state_dict() if isinstance(item, Sampler) else item for item in value]
    return value


@_disable_dynamo  # torch.compiler.disable would import the compiler with the package
def _outside_the_graph(step: Callable[..., Any], *args: Any) -> Any:
    """A step inside a compiled function: the kernels take addresses, which cannot be traced."""
    return step(*args)


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
