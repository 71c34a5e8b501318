"""Align two point clouds: orthogonal Procrustes by uniform block steps, with a known answer.

Minimise |A X - B|^2 / (2n) over rotations X, where B is a rotated and noisy copy of A. The answer
is known in closed form: the polar factor of A^T B. Each step moves only the planes inside randomly
drawn blocks of rows, so it reads d(s-1)/2 entries of Omega instead of d(d-1)/2.
"""

import argparse
from dataclasses import dataclass, field

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from skewflow.geometry import haar, orthogonality_error, project
from skewflow.kernels import rotate_blocks
from skewflow.samplers import Uniform
from skewflow.tournaments import EdgeWeights


@dataclass
class History:
    """What the run saw at every step."""

    distance: list[float] = field(default_factory=list)
    """||X - X*||_F / ||X*||_F before the step."""
    entries: list[int] = field(default_factory=list)
    """Entries of Omega read so far."""


@dataclass
class Problem:
    """Two clouds of n points in R^d and the rotation that aligns them best."""

    A: Tensor
    B: Tensor
    answer: Tensor

    @classmethod
    def random(cls, d: int, n: int, generator: torch.Generator) -> "Problem":
        A = torch.randn(n, d, generator=generator, dtype=torch.float64)
        rotation = haar(d, special=True, generator=generator, dtype=torch.float64)
        noise = torch.randn(n, d, generator=generator, dtype=torch.float64)
        B = A @ rotation + 0.05 * noise
        return cls(A, B, project(A.mT @ B))

    def loss(self, X: Tensor) -> float:
        return (self.A @ X - self.B).square().sum().item() / (2 * len(self.A))

    def gradient(self, X: Tensor) -> Tensor:
        return self.A.mT @ (self.A @ X - self.B) / len(self.A)


def run(
    d: int = 64,
    block_size: int = 8,
    num_steps: int = 600,
    step: float = 0.4,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Problem, Tensor, History]:
    """Run block steps from a random rotation; `step` is the step size times the block weight."""
    generator = torch.Generator().manual_seed(seed)
    problem = Problem.random(d, 4 * d, generator)
    X = haar(d, special=True, generator=generator, dtype=torch.float64)
    sampler, history, entries = Uniform(block_size), History(), 0
    task = None if progress is None else progress.add_task(f"s = {block_size}", total=num_steps)
    for _ in range(num_steps):
        history.distance.append(((X - problem.answer).norm() / problem.answer.norm()).item())
        history.entries.append(entries)
        W = EdgeWeights(X, problem.gradient(X))
        t = sampler.sample(W, generator=generator)
        # The weight makes the estimate unbiased and grows the angle with it: divide the step by it.
        assert isinstance(t.weights, float)
        X = rotate_blocks(X, t.partition, t.blocks(W), eta=-step / t.weights)
        entries += W.evaluated
        if progress is not None and task is not None:
            progress.update(task, advance=1)
    return problem, X, history


def draw(path: str, seed: int) -> None:
    """The README's figure: the dial from matchings to the exact exponential."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    d = 64
    runs = {2: 5000, 4: 1700, 8: 750, 16: 340, 64: 80}
    fig, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    colours = plt.get_cmap("viridis")
    with bar() as progress:
        for place, (s, num_steps) in enumerate(runs.items()):
            _, _, history = run(d, s, num_steps, seed=seed, progress=progress)
            label = f"s = {s} (exact)" if s == d else f"s = {s}"
            style = {"color": colours(place / len(runs)), "label": label}
            axes[0].loglog(range(1, num_steps + 1), history.distance, **style)
            axes[1].loglog([max(e, 1) for e in history.entries], history.distance, **style)
    axes[0].set(xlabel="steps", ylabel="distance to the answer")
    axes[1].set(xlabel="entries of $\\Omega$ read", xlim=(30, None))
    axes[1].legend(frameon=False)
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    fig.suptitle(f"Procrustes, d = {d}: one dial, the block size s", fontsize=11)
    fig.savefig(path, metadata={"Date": None} if path.endswith("svg") else None)


def bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--d", type=int, default=64, help="rows and columns of the rotation")
    parser.add_argument("--block-size", type=int, default=8, help="s, from 2 to d (exact)")
    parser.add_argument("--steps", type=int, default=600, help="number of steps")
    parser.add_argument("--seed", type=int, default=0, help="seed of the problem and the run")
    parser.add_argument("--figure", metavar="PATH", help="draw the README's figure and stop")
    args = parser.parse_args()
    if args.figure:
        draw(args.figure, args.seed)
        return
    with bar() as progress:
        problem, X, history = run(
            args.d, args.block_size, args.steps, seed=args.seed, progress=progress
        )
    d, distance = args.d, ((X - problem.answer).norm() / problem.answer.norm()).item()
    out = Console()
    out.print(f"Procrustes on SO({d}), blocks of s = {args.block_size}, {args.steps} steps")
    out.print(f"  loss                          {problem.loss(X):.9f}")
    out.print(f"  loss at the known optimum     {problem.loss(problem.answer):.9f}")
    out.print(f"  relative distance to optimum  {history.distance[0]:.1e} -> {distance:.1e}")
    out.print(f"  orthogonality error           {orthogonality_error(X).item():.1e}")
    entries = history.entries[-1] // max(1, args.steps - 1)
    share = entries / (d * (d - 1) / 2)
    out.print(f"  entries of Omega per step     {entries} ({share:.0%} of the triangle)")


if __name__ == "__main__":
    main()
