"""Reference of `rotate_blocks`: one small exponential per block (Eq. 8)."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from ... import _validate
from ..._typing import MatrixBlocks
from ...errors import ShapeError
from ...geometry.retractions import cayley, expm
from ...tournaments.partitions import Partition


def rotate_blocks(
    X: Float[Tensor, "d k"],
    partition: Partition,
    blocks: MatrixBlocks,
    eta: float,
    retraction: Literal["exp", "cayley"] = "exp",
) -> Float[Tensor, "d k"]:
    r"""The update $X \leftarrow \prod_k \Gamma(\eta\hat\Omega_{T_k}) X$ of Eq. 8.

    The blocks are disjoint, so their rotations commute and each mixes its own s rows:
    $O(dsk)$ to apply, $O(ds^2)$ for the exponentials. Equal to
    $\Gamma(\eta\hat\Omega) X$ with the assembled (d, d) estimate.

    Args:
        X: Point; not modified.
        partition: The blocks' rows.
        blocks: The skew estimate inside each block, as from `Tournament.blocks`.
        eta: Step size; positive ascends, so a minimiser passes ``-lr``.
        retraction: "exp" or "cayley".

    Example:
        >>> import torch
        >>> from skewflow.samplers import Uniform
        >>> from skewflow.tournaments import EdgeWeights
        >>> X, G = torch.eye(6), torch.arange(36.0).view(6, 6)
        >>> W = EdgeWeights(X, G)
        >>> t = Uniform(3).sample(W, generator=torch.Generator().manual_seed(0))
        >>> Y = rotate_blocks(X, t.partition, t.blocks(W), eta=-0.01)
        >>> bool(torch.allclose(Y.mT @ Y, torch.eye(6), atol=1e-6))
        True
    """
    _validate.one_of(retraction, ("exp", "cayley"), "retraction")
    _validate.matrix(X, "X")
    if partition.d != X.shape[0]:
        raise ShapeError(
            f"`partition` must cover the d={X.shape[0]} rows of `X`: got one of {partition.d} rows."
        )
    gamma = expm if retraction == "exp" else cayley
    Y = X.clone()
    for rows, omega in zip(partition.blocks, blocks, strict=True):
        if rows.shape[1] > 1:
            Y[rows] = gamma(eta * omega) @ X[rows]  # (l, s, k)
    return Y
