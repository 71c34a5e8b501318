"""The convergence bound of the stochastic optimiser on O(d) (Theorem 5.1)."""

from collections.abc import Sequence


def gradient_norm_bound(
    *,
    gap: float,
    second_moment: float,
    lipschitz: float,
    gradient_at_identity: float,
    d: int,
    step_sizes: Sequence[float],
) -> float:
    r"""The bound on $\min_i E\|\nabla_O F(X_i)\|_F^2$ over a run that maximises F (Theorem 5.1).

    $\frac{2(F^* - F(X_0))}{\sum\eta_i} + \sigma^2\left((2\sqrt d + 1)L + \|\nabla F(I)\|_F\right)
    \frac{\sum\eta_i^2}{\sum\eta_i}$, where $\|\nabla_O F\|_F = \|\Omega\|_F$. The theorem requires
    every estimate to be unbiased given the past. Independent draws are; in a sweep without
    replacement only the first draw is.

    Args:
        gap: $F^* - F(X_0)$.
        second_moment: $\sigma^2 \ge \sup E\|\hat\Omega\|_F^2$. It is a second moment, not a
            variance, so it does not vanish for the exact method.
        lipschitz: L of the Euclidean gradient on O(d).
        gradient_at_identity: $\|\nabla F(I)\|_F$.
        d: Number of rows.
        step_sizes: $\eta_0, ..., \eta_T$.

    Example:
        >>> round(gradient_norm_bound(gap=1.0, second_moment=1.0, lipschitz=1.0,
        ...                           gradient_at_identity=0.0, d=4, step_sizes=[0.1] * 100), 3)
        0.7
    """
    step_sizes = list(step_sizes)
    if not step_sizes or min(step_sizes) <= 0:
        raise ValueError(
            f"`step_sizes` must be positive, one for each step: got {step_sizes[:5]}. "
            "The theorem is about runs that maximise F; to minimise, pass the constants of -F."
        )
    total = sum(step_sizes)
    noise = second_moment * ((2 * d**0.5 + 1) * lipschitz + gradient_at_identity)
    return 2 * gap / total + noise * sum(eta**2 for eta in step_sizes) / total
