"""The flows that refine a Gaussian posterior, each with the logarithm of its determinant.

All but the inverse autoregressive one are those of van den Berg, Hasenclever, Tomczak and Welling,
"Sylvester Normalizing Flows for Variational Inference", UAI 2018; a context h from the encoder
gives their parameters for each image.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from skewflow.nn import orthogonal_

Method = Literal["none", "planar", "iaf", "householder", "flowsgd", "flowadam", "amortised"]
"""No flow; planar flows; inverse autoregressive ones; and Sylvester flows whose factor is a product
of reflections from the encoder, a shared matrix trained by FlowSGD or FlowAdam, or a matrix from
the encoder that is made orthogonal by iteration."""
SYLVESTER = ("householder", "flowsgd", "flowadam", "amortised")
SMALL = 0.1
"""Layers that give flows their parameters start at this part of torch's draw: near the identity."""
ITERATIONS = 30
"""Most steps of the iteration that makes a matrix of the encoder orthogonal."""

Points = Float[Tensor, "b d"]
Moved = tuple[Float[Tensor, "b d"], Float[Tensor, "b"]]


class Unmoved(nn.Module):
    """No flow."""

    def forward(self, z: Points, h: Float[Tensor, "b c"]) -> Moved:
        """The points as they are."""
        return z, z.new_zeros(len(z))


class Planar(nn.Module):
    """Rezende and Mohamed's z + u tanh(w z + b), with u bent so that the map is invertible.

    They bend u w to log(1 + e^x) - 1, which is -0.3 at x = 0. Here x is shifted so that it is 0
    there, and the flow starts near the identity.
    """

    def __init__(self, d: int, context: int) -> None:
        super().__init__()
        self.d = d
        self.head = _small(nn.Linear(context, 2 * d + 1))

    def forward(self, z: Points, h: Float[Tensor, "b c"]) -> Moved:
        """One flow."""
        u, w, b = self.head(h).split([self.d, self.d, 1], dim=1)
        inner = (u * w).sum(1, keepdim=True)
        bent = softplus(inner + math.log(math.e - 1)) - 1
        u = u + (bent - inner) * w / (w.square().sum(1, keepdim=True) + 1e-12)
        t = torch.tanh((w * z).sum(1, keepdim=True) + b)
        log_det = torch.log1p((u * w).sum(1) * (1 - t.square()).squeeze(1))
        return z + u * t, log_det


class Autoregressive(nn.Module):
    """Kingma et al.'s flow: each entry is gated by a masked network of the entries before it."""

    mask: Tensor
    readout: Tensor

    def __init__(self, d: int, context: int, width: int, flipped: bool) -> None:
        super().__init__()
        self.flipped = flipped
        degree = torch.arange(width) % max(1, d - 1) + 1
        entry = torch.arange(1, d + 1)
        self.register_buffer("mask", (degree[:, None] >= entry).float())
        self.register_buffer("readout", (entry[:, None] > degree).float().repeat(2, 1))
        self.first, self.context = nn.Linear(d, width), nn.Linear(context, width, bias=False)
        self.last = _small(nn.Linear(width, 2 * d))

    def forward(self, z: Points, h: Float[Tensor, "b c"]) -> Moved:
        """One flow."""
        z = z.flip(1) if self.flipped else z
        hidden = linear(z, self.first.weight * self.mask, self.first.bias) + self.context(h)
        found = linear(nn.functional.elu(hidden), self.last.weight * self.readout, self.last.bias)
        m, s = found.chunk(2, dim=1)
        s = s + 1.5  # it starts near the identity
        gate = torch.sigmoid(s)
        return gate * z + (1 - gate) * m, nn.functional.logsigmoid(s).sum(1)


class Sylvester(nn.Module):
    """z + Q R tanh(R' Q^T z + b) with triangles and bias from the encoder."""

    orthogonal_names: tuple[str, ...] = ()

    def __init__(self, d: int, rank: int, context: int, method: Method) -> None:
        super().__init__()
        self.d, self.rank, self.method = d, rank, method
        self.head = _small(nn.Linear(context, 2 * rank * rank + rank))
        if method == "householder":
            self.factor = nn.Linear(context, rank * d)
        elif method == "amortised":
            self.factor = nn.Linear(context, d * rank)
            with torch.no_grad():  # it starts near one orthogonal matrix for all images
                self.factor.weight.mul_(SMALL)
                self.factor.bias.copy_(orthogonal_(torch.empty(d, rank)).flatten())
        else:
            self.Q = nn.Parameter(orthogonal_(torch.empty(d, rank)))
            self.orthogonal_names = ("Q",)

    def forward(self, z: Points, h: Float[Tensor, "b c"]) -> Moved:
        """One flow."""
        m = self.rank
        first, second, b = self.head(h).split([m * m, m * m, m], dim=1)
        R, R_tilde = _triangle(first.view(-1, m, m)), _triangle(second.view(-1, m, m))
        Q = self.orthogonal(h)
        t = torch.tanh((R_tilde @ (Q.mT @ z[..., None])).squeeze(-1) + b)
        diagonal = R.diagonal(dim1=1, dim2=2) * R_tilde.diagonal(dim1=1, dim2=2)
        log_det = torch.log1p((1 - t.square()) * diagonal).sum(1)
        return z + (Q @ (R @ t[..., None])).squeeze(-1), log_det

    def orthogonal(self, h: Float[Tensor, "b c"]) -> Float[Tensor, "*b d m"]:
        """The factor Q, one for all images or one for each."""
        if self.method in ("flowsgd", "flowadam"):
            return self.Q
        if self.method == "householder":
            return _reflections(self.factor(h).view(-1, self.rank, self.d), self.rank)
        return made_orthogonal(self.factor(h).view(-1, self.d, self.rank))


def _small(layer: nn.Linear) -> nn.Linear:
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(SMALL)
    return layer


def _triangle(A: Float[Tensor, "b m m"]) -> Float[Tensor, "b m m"]:
    """The upper triangle, with the tanh of its diagonal, so that the flow is invertible."""
    return A.triu(1) + torch.diag_embed(torch.tanh(A.diagonal(dim1=1, dim2=2)) * (1 - 1e-6))


def _reflections(v: Float[Tensor, "b n d"], rank: int) -> Float[Tensor, "b d m"]:
    """The first columns of a product of Householder reflections."""
    v = v / v.norm(dim=2, keepdim=True)
    Q = torch.eye(v.shape[2], rank, dtype=v.dtype, device=v.device).expand(len(v), -1, -1)
    for u in v.unbind(1):
        Q = Q - 2 * u[:, :, None] * (u[:, None, :] @ Q)
    return Q


def made_orthogonal(A: Float[Tensor, "b d m"]) -> Float[Tensor, "b d m"]:
    """The iteration of Bjorck and Bowie, as in the flows' paper, until it is orthogonal.

    It starts at A over its largest singular value, and stops when no entry of I - A^T A is above
    the rounding of the dtype.
    """
    one = torch.eye(A.shape[2], dtype=A.dtype, device=A.device)
    A = A / torch.linalg.matrix_norm(A.detach(), 2)[:, None, None]
    enough = 20 * torch.finfo(A.dtype).eps
    for _ in range(ITERATIONS):
        error = one - A.mT @ A
        A = A + A @ error / 2
        if float(error.detach().abs().max()) < enough:
            break
    return A


def make_flows(
    method: Method,
    *,
    d: int,
    rank: int,
    context: int,
    width: int,
    num_flows: int,
    num_planar: int,
) -> nn.ModuleList:
    """The flows of a method, one behind the other."""
    if method == "none":
        return nn.ModuleList([Unmoved()])
    if method == "planar":
        return nn.ModuleList([Planar(d, context) for _ in range(num_planar)])
    if method == "iaf":
        return nn.ModuleList(
            [Autoregressive(d, context, width, flipped=k > 0) for k in range(num_flows)]
        )
    return nn.ModuleList([Sylvester(d, rank, context, method) for _ in range(num_flows)])
