"""Orthogonal Sylvester flow: an invertible layer with a cheap determinant (Sec. 1)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .. import _validate
from ..errors import ShapeError
from .init import orthogonal_


class SylvesterFlow(nn.Module):
    r"""The step $z' = z + Q R \tanh(\tilde R Q^\top z + b)$ of a normalising flow.

    Q in ST(d, m) starts Haar-distributed and is marked as orthogonal; the optimiser keeps it so,
    see `optim.split_parameters`. R and $\tilde R$ are upper triangular, and
    $\det\frac{\partial z'}{\partial z} = \prod_i (1 + \tanh'(\cdot)_i R_{ii} \tilde R_{ii})$. The
    determinant costs O(m) and is correct only while the columns of Q are orthonormal. The flow is
    invertible if $R_{ii} \tilde R_{ii} > -1$, so the two diagonals are the tanh of those of `R` and
    `R_tilde`; entries below the diagonal are not read. The layer is that of van den Berg,
    Hasenclever, Tomczak and Welling, "Sylvester Normalizing Flows for Variational Inference", UAI
    2018. The paper names it in its introduction (Sec. 1) as a use of matrices in ST(d, k) and
    trains none.

    Args:
        features: d.
        rank: m, at most d.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ShapeError: If the rank is not between 1 and d.

    Example:
        >>> flow = SylvesterFlow(6, 3)
        >>> z, log_det = flow(torch.randn(5, 6))
        >>> z.shape, log_det.shape
        (torch.Size([5, 6]), torch.Size([5]))
    """

    orthogonal_names = ("Q",)

    def __init__(
        self,
        features: int,
        rank: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= rank <= features:
            raise ShapeError(
                f"`rank` must be between 1 and features={features}: got {rank}. At most d "
                "columns of length d can be orthonormal."
            )
        self.Q = nn.Parameter(torch.empty(features, rank, device=device, dtype=dtype))
        self.R = nn.Parameter(torch.empty(rank, rank, device=device, dtype=dtype))
        self.R_tilde = nn.Parameter(torch.empty_like(self.R))
        self.bias = nn.Parameter(torch.empty(rank, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw Q from Haar measure and small triangles, with torch's global generator."""
        orthogonal_(self.Q)
        # Not zero: if both triangles are zero, so are all their gradients.
        nn.init.normal_(self.R, std=0.1)
        nn.init.normal_(self.R_tilde, std=0.1)
        nn.init.zeros_(self.bias)

    def forward(
        self, z: Float[Tensor, "*batch d"]
    ) -> tuple[Float[Tensor, "*batch d"], Float[Tensor, "*batch"]]:
        """The image of `z` and the logarithm of the determinant.

        Args:
            z: Points (*batch, d).

        Returns:
            z' (*batch, d), and log |det dz'/dz| (*batch).

        Raises:
            ShapeError: If the last dimension is not d.
            DtypeError: If `z` is not real and floating.
        """
        _validate.floating(z, "z")
        if z.ndim < 1 or z.shape[-1] != self.Q.shape[0]:
            raise ShapeError(
                f"`z` must have the shape (*batch, {self.Q.shape[0]}): got {tuple(z.shape)}. "
                "The last dimension is the number of features."
            )
        R, R_tilde = _triangle(self.R), _triangle(self.R_tilde)
        h = torch.tanh(z @ self.Q @ R_tilde.mT + self.bias)  # (*batch, m)
        diagonal = R.diagonal() * R_tilde.diagonal()
        log_det = torch.log1p((1 - h.square()) * diagonal).sum(-1)
        return z + h @ R.mT @ self.Q.mT, log_det

    def extra_repr(self) -> str:
        """The arguments that `print` shows."""
        return f"features={self.Q.shape[0]}, rank={self.Q.shape[1]}"


def _triangle(A: Float[Tensor, "m m"]) -> Float[Tensor, "m m"]:
    """The upper triangle, with the tanh of its diagonal."""
    # In floating point tanh reaches 1, and diagonals of 1 and -1 would make the determinant zero.
    bound = 1 - 2 * torch.finfo(A.dtype).eps
    return A.triu(1) + torch.diag(bound * torch.tanh(A.diagonal()))
