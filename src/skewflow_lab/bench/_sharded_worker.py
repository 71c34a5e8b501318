"""A worker of `skewflow bench sharded`: it steps sharded weights together with the others."""

import json
import sys
import time
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from skewflow.geometry import haar
from skewflow.optim import FlowSGD

from ..measure.timing import Step
from ..measure.traffic import Traffic
from .sharded import NUMBER, SIZES

LR, MOMENTUM = 1e-5, 0.9


class AllToAllMuon:
    """Muon for several weights whose rows are split: each process orthogonalises some of them.

    Args:
        params: The weights.
    """

    def __init__(self, params: list[nn.Parameter]) -> None:
        self._params, self._M = params, torch.zeros_like(self._gradients(params))

    @torch.no_grad()
    def step(self) -> None:
        """Bring whole directions together, orthogonalise them, and send the parts back."""
        (n, rows, columns), size = self._M.shape, dist.get_world_size()
        self._M.mul_(MOMENTUM).add_(self._gradients(self._params))
        parts = _exchanged(self._M).view(size, n // size, rows, columns)
        whole = orthogonalised(parts.transpose(0, 1).reshape(-1, size * rows, columns))
        parts = whole.view(-1, size, rows, columns).transpose(0, 1).reshape(n, rows, columns)
        for p, update in zip(self._params, _exchanged(parts), strict=True):
            _local(p.detach()).sub_(update, alpha=LR)

    @staticmethod
    def _gradients(params: list[nn.Parameter]) -> Tensor:
        return torch.stack([_local(p.grad) for p in params])


def orthogonalised(G: Tensor) -> Tensor:
    """Muon's five iterations in bfloat16, which bring all singular values near 1."""
    X = G.bfloat16() if G.shape[-2] <= G.shape[-1] else G.bfloat16().mT
    X = X / torch.linalg.matrix_norm(X, keepdim=True)
    for _ in range(5):
        A = X @ X.mT
        X = 3.4445 * X + (2.0315 * A @ A - 4.7750 * A) @ X
    return (X if X.shape == G.shape else X.mT).to(G.dtype)


def _exchanged(stack: Tensor) -> Tensor:
    received = torch.empty_like(stack)
    dist.all_to_all_single(received, stack)
    return received


def _local(tensor: Tensor | None) -> Tensor:
    assert isinstance(tensor, DTensor)
    part: Tensor = tensor.to_local()
    return part


def methods(d: int, k: int, mesh: DeviceMesh) -> dict[str, Step]:
    """A step of `NUMBER` weights by each method; every method has its own weights."""
    found: dict[str, Step] = {}
    for s in SIZES if d == k else ():
        blocks = FlowSGD(_weights(d, k, mesh), lr=LR, momentum=MOMENTUM, block_size=s)
        found[f"blocks of {s}"] = blocks.step
    exact = FlowSGD(
        _weights(d, k, mesh), lr=LR, momentum=MOMENTUM, block_size="dense", gather=d == k
    )
    found["exact, gathered" if d == k else "exact"] = exact.step
    if hasattr(torch.optim, "Muon"):  # from torch 2.9 on
        found["Muon of torch"] = torch.optim.Muon(_weights(d, k, mesh), lr=LR).step
    found["Muon, all-to-all"] = AllToAllMuon(_weights(d, k, mesh)).step
    return found


def _weights(d: int, k: int, mesh: DeviceMesh) -> list[nn.Parameter]:
    generator, params = torch.Generator().manual_seed(0), []
    for _ in range(NUMBER):
        W, G = haar(d, k, generator=generator), torch.randn(d, k, generator=generator)
        params.append(nn.Parameter(distribute_tensor(W.float(), mesh, [Shard(0)])))
        params[-1].grad = distribute_tensor(G, mesh, [Shard(0)])
    return params


def measured(steps: dict[str, Step], rounds: int) -> dict[str, tuple[Traffic, float, float]]:
    """For each step its traffic, and medians over rounds of its time and of its CPU time, in ms."""
    traffic, times = {}, {}
    for name, step in steps.items():
        step()  # compiles
        with Traffic() as traffic[name]:
            step()
        times[name] = torch.zeros(2, rounds, dtype=torch.float64)
    for turn in range(rounds):
        for name, step in steps.items():
            dist.barrier()
            began = time.perf_counter(), time.process_time()
            step()
            times[name][0, turn] = time.perf_counter() - began[0]
            times[name][1, turn] = time.process_time() - began[1]
    for each in times.values():
        dist.all_reduce(each, op=dist.ReduceOp.MAX)  # the slowest process counts
    return {
        name: (traffic[name], *(1e3 * median(each) for each in times[name].tolist()))
        for name in steps
    }


def main(store: str, rank: int, processes: int, d: int, rounds: int) -> None:
    """Measure all methods on both shapes; the first worker prints the rows."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=processes)
    mesh, rows = init_device_mesh("cpu", (processes,)), []
    for shape in ((d, d), (4 * d, d // 4)):
        for name, (traffic, ms, of_cpu) in measured(methods(*shape, mesh), rounds).items():
            row: dict[str, Any] = {"step": name, "shape": list(shape), "processes": processes}
            row["collectives"] = len(traffic.calls)
            row["kB sent for a weight"] = traffic.sent(processes) / NUMBER / 1e3
            rows.append({**row, "milliseconds": ms, "CPU milliseconds": of_cpu})
    if rank == 0:
        print(json.dumps(rows), flush=True)
    dist.barrier()  # a process that leaves early ends the connections of the others
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
