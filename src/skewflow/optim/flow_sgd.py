"""FlowSGD: stochastic gradient descent on orthogonal matrices (Eq. 7, 8)."""

from collections.abc import Iterable
from typing import Any, Literal

from torch import Tensor

from ..samplers import Sampler
from .momentum import MomentumOptimizer
from .moved_options import says_what_moved


class FlowSGD(MomentumOptimizer):
    r"""SGD with momentum whose steps stay on O(d), SO(d) or ST(d, k).

    Each step replaces the generator $\Omega = D X^\top - X D^\top$ of the direction D by an
    unbiased estimate on random blocks of s rows and turns the rows of each block:
    $X \leftarrow \prod_B \exp(-lr\,\hat\Omega_B) X$. The weight $\frac{d-1}{s-1}$ of the estimate
    is part of the step, so a small block turns by a large angle: compare block sizes at equal
    $lr\frac{d-1}{s-1}$. The momentum $M \leftarrow \mu M + G$ is that of `torch.optim.SGD`, but the
    normal part X N of old gradients, N symmetric, would hold a moving point back. So the momentum
    turns with its rows, $M_B \leftarrow \exp(-lr\,\hat\Omega_B) M_B$: a normal part stays normal
    and has no effect. An exact step keeps the tangent part only. (Not in the paper.)

    Args:
        params: Orthogonal weights, or groups of them: tall (orthonormal columns), wide (orthonormal
            rows), batches (n, d, k), convolution weights; see `MatrixView`. Checked once.
        lr: Step size. A tensor of one element is read at every step, which on CUDA waits for it.
        momentum: $\mu$.
        nesterov: Use $G + \mu M$ as the direction.
        block_size: s; "dense" for the exact method; "auto" for exact steps, to the nearest point,
            whatever they cost: blocks would change the meaning of `lr`. `AngleSGD`, whose rate has
            one meaning for both, chooses by cost. For a sharded weight "auto" is the step that its
            placement allows. Matrices with no more than s rows are stepped exactly.
        sampler: How blocks are drawn. "sweep" and "uniform" are fused, read only the blocks they
            draw, and each of their steps has the uniform law. At s = 2 "sweep" goes through a
            relabelled round robin: every plane turns once in d - 1 steps (d for odd d), so steps
            depend on one another. "uniform" draws each step independently, as Theorem 5.1 assumes.
            Larger blocks are drawn independently by both. A `Sampler` object,
            such as ``HRegular(2)``, runs on the host. `Balanced` has the law of `HRegular`, reads
            only a few entries of $\Omega$ and raises a `BalanceError` if they are not of similar
            size. `HRegular`, `Optimal` and `HeavyMatchings` read all of $\Omega$.
        num_draws: m draws of a matching for each gradient, with ``block_size=2``: the step is a
            product of m steps of size lr / m, all at the same point. It pays where a gradient costs
            more than many steps, as in evolution strategies: with "sweep" and m = d - 1 one step
            turns every plane once. At the same `lr` the step is that of the exact method, on
            average, and its noise falls with m.
        retraction: How a step turns: "exp", "cayley", or, for dense steps, "polar", the tangent
            step and the nearest point, which turns no plane by more than 69 degrees. "auto" is
            "polar" for the exact steps that `block_size="auto"` chooses, and "exp" for all others.
        maximize: Ascend.
        seed: Seed of every draw.
        check_every: Steps between two checks of $X^\top X = I$; a weight that rounding has moved
            away is corrected. 0 never checks. Weights stepped by factors are checked at least every
            64 such steps. Float32 weights that take dense exponential steps with 2k >= d are
            corrected every 64 steps without a check, whatever the value.
        nonfinite: What to do about a gradient with NaN or infinity: "raise", or "skip" the
            parameter and count it in ``state[p]["skipped"]``. See `step`. On CUDA "skip" reads the
            gradient once more, before the step.
        foreach: False launches the CUDA kernels, and takes exact steps, once for each parameter
            instead of once for all of one shape.
        gather: Gather the whole matrices of a sharded weight for a step that its placement does
            not allow in parts; without it such a step raises.
        factor_window: Steps w that the momentum of factors remembers, see `step`. The direction is
            $A_tB_t^\top + \sum_{0<s<w} \mu^s T_{t-s}$ with the exact tangent part T of an old
            gradient at the point where it was measured, and reaches $1 - \mu^w$ of its length. T
            has twice the rank of its gradient, so the rank of a step grows to 2w - 1 times that of
            the factors. Momentum of dense gradients projects its whole past at every point: a
            window as long as the run differs from it only to second order in the distance
            travelled. A shorter window needs shorter steps: with $\mu = 0.9$ lr times the curvature
            must stay below 0.40 for w = 4, below 2.8 for w = 32, and below 3.8 without a window.
        scale: c > 0, for weights with $X^\top X = c^2 I$, such as those of
            ``nn.orthogonal_(weight, scale=c)``. X / c is stepped, in a copy, by $\Omega = GX^\top -
            XG^\top$. Sharded weights need 1.
        weight_decay: Must be 0: the norm of an orthogonal weight never changes. The option exists
            for groups that other optimisers use, too.

    Example:
        >>> import torch
        >>> from skewflow.nn import orthogonal_
        >>> g = torch.Generator().manual_seed(0)
        >>> W = torch.nn.Parameter(orthogonal_(torch.empty(8, 8), generator=g))
        >>> target = orthogonal_(torch.empty(8, 8), generator=g)
        >>> optimizer = FlowSGD([W], lr=0.05, block_size=2)
        >>> for _ in range(300):
        ...     optimizer.zero_grad()
        ...     ((W - target) ** 2).sum().backward()
        ...     optimizer.step()
        >>> bool(torch.allclose(W.mT @ W, torch.eye(8), atol=1e-5))
        True
    """

    @says_what_moved
    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        momentum: float = 0.0,
        *,
        nesterov: bool = False,
        block_size: int | Literal["dense", "auto"] = "auto",
        sampler: Literal["sweep", "uniform"] | Sampler = "sweep",
        num_draws: int = 1,
        retraction: Literal["auto", "exp", "cayley", "polar"] = "auto",
        maximize: bool = False,
        seed: int = 0,
        check_every: int = 256,
        nonfinite: Literal["raise", "skip"] = "raise",
        foreach: bool | None = None,
        gather: bool = False,
        factor_window: int = 4,
        scale: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "block_size": block_size,
            "sampler": sampler,
            "num_draws": num_draws,
            "retraction": retraction,
            "maximize": maximize,
            "seed": seed,
            "check_every": check_every,
            "nonfinite": nonfinite,
            "foreach": foreach,
            "gather": gather,
            "factor_window": factor_window,
            "scale": scale,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)
