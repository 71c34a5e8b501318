"""`skewflow bench second-moment`: compares second moments for FlowAdam, and where they divide.

The first moment M gives the generator Omega = M X^T - X M^T. "element" and "row" divide M by the
root of the second moment before, as Adam on the ambient matrix does; "matrix" divides Omega by one
number; "product" and "plane" divide Omega[i, j] by the geometric mean, or the root mean square, of
the numbers of the rows i and j. The last three vanish where Omega does, so they keep the stationary
points; the first two move them.
"""

from collections.abc import Callable
from itertools import product

import torch
from rich.progress import track
from torch import Tensor, nn

from skewflow.geometry import expm, haar, omega
from skewflow.kernels import rotate_pairs
from skewflow.kernels.permutation import matching_at

from ..runs.environment import environment
from ..runs.files import recorded, write_json
from ..runs.threads import one_thread
from .command import check_rounds, show

BETAS, EPS = (0.9, 0.999), 1e-8
"""Adam's default values."""
LRS = [10**e for e in (-4, -3.5, -3, -2.5, -2, -1.5)]
"""Learning rates that every candidate searches."""
SIZES: tuple[int | str, ...] = (2, "dense")
"""Block sizes: matchings and the exact step."""
MOMENTS = ("element", "row", "matrix", "product", "plane")


def second_moment(steps: int = 600, save: bool = False) -> None:
    """Compare second moments with one number for a matrix, a row or an element.

    Every candidate tries the same learning rates on every problem, and its least final loss counts.

    Args:
        steps: Steps of a run.
        save: Write results/bench/second_moment.json of the repository.
    """
    check_rounds("cpu", 1, save)
    rows = []
    with one_thread():
        for problem, s in track(list(product(PROBLEMS, SIZES))):
            for moment in MOMENTS:
                value, lr = min((final_loss(problem, moment, lr, s, steps), lr) for lr in LRS)
                rows.append({"problem": problem, "s": s, "moment": moment, "loss": value, "lr": lr})
                show(f"{problem:11s} s={s!s:6s} {moment:8s} {value:12.5g} at lr {lr:.1e}")
        if save:
            content = {"steps": steps, "rows": rows, "environment": environment("cpu")}
            write_json(recorded("second_moment.json"), content)


def procrustes(generator: torch.Generator) -> tuple[Tensor, Callable[[Tensor, int], Tensor]]:
    """A problem whose rows have very different weights: A (X - B) with A from 1 to 100."""
    X, B = (haar(64, generator=generator) for _ in range(2))
    B[0] *= torch.linalg.det(B @ X.mT).sign()  # rotations can reach B
    A = torch.logspace(0, 2, 64)[:, None]
    return X, lambda W, step: (A * (W - B)).square().sum() / 2


def pca(generator: torch.Generator) -> tuple[Tensor, Callable[[Tensor, int], Tensor]]:
    """Eight leading directions of 128 variables, from batches of 32."""
    scales = torch.logspace(0, -2, 128)
    Q = haar(128, generator=generator)
    data = (torch.randn(4096, 128, generator=generator) * scales) @ Q.mT

    def loss(W: Tensor, step: int) -> Tensor:
        batch = data if step < 0 else data[torch.arange(32) + 32 * (step % 128)]
        return -(batch @ W).square().sum() / len(batch)

    return haar(128, 8, generator=generator), loss


def digits(generator: torch.Generator) -> tuple[Tensor, Callable[[Tensor, int], Tensor]]:
    """The orthogonal first layer of a fixed two-layer network on real digits, batches of 64."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    head = torch.randn(10, 64, generator=generator)

    def loss(W: Tensor, step: int) -> Tensor:
        chosen = slice(None) if step < 0 else (torch.arange(64) + 64 * step) % len(x)
        return nn.functional.cross_entropy(torch.tanh(4 * x[chosen] @ W) @ head.mT, y[chosen])

    return haar(64, generator=generator), loss


PROBLEMS = {"procrustes": procrustes, "pca": pca, "digits": digits}


def generator_of(moment: str, M: Tensor, v: Tensor, X: Tensor) -> Tensor:
    """The scaled Omega; v is the second moment of the elements."""
    if moment == "element":
        M = M / (v.sqrt() + EPS)
    elif moment == "row":
        M = M / (v.mean(-1, keepdim=True).sqrt() + EPS)
    elif moment == "matrix":
        M = M / (v.mean().sqrt() + EPS)
    W = omega(X, M)
    rows = v.mean(-1)
    if moment == "product":
        f = (rows.sqrt() + EPS).rsqrt()
        W = f[:, None] * W * f
    elif moment == "plane":
        W = W / (((rows[:, None] + rows) / 2).sqrt() + EPS)
    return W


def final_loss(problem: str, moment: str, lr: float, s: int | str, steps: int) -> float:
    """The loss on all data after some steps of Adam with the given second moment."""
    X, loss = PROBLEMS[problem](torch.Generator().manual_seed(0))
    d = len(X)
    m, v = torch.zeros_like(X), torch.zeros_like(X)
    for t in range(1, steps + 1):
        W = X.requires_grad_()
        (G,) = torch.autograd.grad(loss(W, t), W)
        X = X.detach()
        m = BETAS[0] * m + (1 - BETAS[0]) * G
        v = BETAS[1] * v + (1 - BETAS[1]) * G.square()
        corrected = m / (1 - BETAS[0] ** t), v / (1 - BETAS[1] ** t)
        A = -lr * (1 - (t - 1) / steps) * generator_of(moment, *corrected, X)
        if s == "dense":
            X = expm(A) @ X
        else:
            pairs, _ = matching_at(d, 0, 0, torch.tensor(t))
            X = rotate_pairs(X, pairs, (d - 1) * A[pairs[:, 0], pairs[:, 1]])
    return float(loss(X, -1))
