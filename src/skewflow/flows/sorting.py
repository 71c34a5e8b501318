r"""Sorting numbers by a flow on O(d): the field and the scores of Sec. 9.3 (Eq. 11-13, Table 2)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import _validate
from ..errors import ShapeError
from .fields import Brockett


def sorting_field(q: Float[Tensor, "*batch d"], n: Float[Tensor, "d"] | None = None) -> Brockett:
    r"""The field of the flow that sorts q: $X' = X(HN - NH)$ with $H = X^\top Q X$ (Eq. 11).

    The paper prints the opposite sign, which *minimises* $\sum x_i n_i$ and sorts in reverse. This
    field is the reverse form of Brockett's with a diagonal A = Q: almost every start flows to a
    signed permutation P with $P^\top q$ in the order of n (Eq. 12, 13).

    Args:
        q: The numbers, all different.
        n: The diagonal of N, all different; d, ..., 1 when omitted, which sorts in decreasing
            order.

    Example:
        >>> sorting_field(torch.tensor([1.0, 2.0]))(0.0, torch.tensor([[0.6, 0.8], [-0.8, 0.6]]))
        tensor([[ 0.0000,  0.4800],
                [-0.4800,  0.0000]])
    """
    _validate.floating(q, "q")
    if q.ndim < 1 or q.shape[-1] < 2:
        raise ShapeError(f"`q` must hold at least two numbers: got shape {tuple(q.shape)}.")
    d = q.shape[-1]
    n = decreasing(d, like=q) if n is None else n
    if n.shape != (d,):
        raise ShapeError(f"`n` must hold one number for each of the d={d}: got {tuple(n.shape)}.")
    return Brockett(torch.diag_embed(q), n.to(q), side="right")


def decreasing(d: int, like: Tensor) -> Float[Tensor, "d"]:
    """d, ..., 1: the diagonal of N in Table 2."""
    return torch.arange(d, 0, -1, dtype=like.dtype, device=like.device)


def nearest_permutation(X: Float[Tensor, "*batch d d"]) -> Int[Tensor, "*batch d"]:
    r"""The nearest permutation matrix, as the row of the 1 in each column (Sec. 9.3).

    $P_{\pi(j) j} = 1$ for the $\pi$ that maximises $\sum_j X_{\pi(j) j}^2$, found by the Hungarian
    method; entries are squared because the flow ends at a signed permutation. The paper does not
    say how it projects. Needs scipy.

    Example:
        >>> nearest_permutation(torch.tensor([[0.1, -0.9], [0.8, 0.2]]))
        tensor([1, 0])
    """
    _validate.square(X, "X")
    try:
        from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the nearest permutation needs scipy: install `skewflow[lab]`."
        ) from error
    d = X.shape[-1]
    squares = X.square().mT.reshape(-1, d, d).cpu().numpy()  # row j: the candidates of column j
    rows = [torch.from_numpy(linear_sum_assignment(S, maximize=True)[1]) for S in squares]
    return torch.stack(rows).reshape(X.shape[:-1])


def inverse_fraction(p: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    """The fraction of pairs i < j with p_i > p_j: 1 when p decreases (Sec. 9.3).

    Example:
        >>> inverse_fraction(torch.tensor([3.0, 1.0, 2.0]))
        tensor(0.6667, dtype=torch.float64)
    """
    d = p.shape[-1]
    i, j = torch.triu_indices(d, d, offset=1, device=p.device)
    return (p[..., i] > p[..., j]).to(torch.float64).mean(-1)


def sortedness(
    X: Float[Tensor, "*batch d d"], q: Float[Tensor, "*batch d"]
) -> Float[Tensor, "*batch"]:
    r"""The score "inv" of Table 2: the `inverse_fraction` of $P^\top q$ for the P nearest to X.

    Example:
        >>> sortedness(torch.tensor([[0.1, -0.9], [0.8, 0.2]]), torch.tensor([1.0, 2.0]))
        tensor(1., dtype=torch.float64)
    """
    return inverse_fraction(q.gather(-1, nearest_permutation(X).to(q.device)))


def largest_stable_step(
    q: Float[Tensor, "*batch d"], *, scale: float = 1.0
) -> Float[Tensor, "*batch"]:
    r"""The step size above which the sorted point is unstable (not in the paper).

    For N = diag(d, ..., 1) the flow near the sorted point is, to first order,
    $\theta_{ij}' = -(n_i - n_j)(p_i - p_j)\theta_{ij}$. A step multiplies each angle by one minus
    $\eta$ times its rate, so the largest rate, that of the first and the last number, must be below
    $2/\eta$. A stochastic step with the weight c (`scale`) allows a step size c times smaller:
    $c = d - 1$ for matchings.

    Example:
        >>> largest_stable_step(torch.tensor([0.0, 0.5, 1.0]))
        tensor(1.)
    """
    d = q.shape[-1]
    spread = q.amax(-1) - q.amin(-1)
    return 2 / (scale * (d - 1) * spread)
