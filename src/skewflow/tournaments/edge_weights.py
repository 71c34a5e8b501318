"""Lazy access to Omega: the weighted tournament T(Omega) of Definition 3.1."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import _validate
from .._typing import MatrixBlocks
from ..errors import NotOnManifoldError, ShapeError
from ..geometry.checks import check_skew
from ..geometry.precision import no_autocast
from ..geometry.skew import Side, check_side
from .partitions import Partition
from .weight_functions import H, h_values, weight_function

CHUNK = 2**22
"""Largest number of entries in memory while all of Omega is read row by row: 32 MiB in float64."""


class EdgeWeights:
    r"""The edge weights $w_{ij} = \Omega_{ij}$ of the complete graph on the d rows, on demand.

    The weighted tournament $T(\Omega)$ of Definition 3.1.

    $\Omega = GX^\top - XG^\top$ is not formed: an entry costs $O(k)$ and a partition into blocks of
    s rows $O(dsk)$. `evaluated` counts the entries (i < j) that were computed. Entries read from a
    table (after `dense`, or from `of`) and the blocks of the last partition are not counted again.
    Entries have the dtype of `X`, or float32 if that is a half precision. Nothing is copied, so the
    object is valid only until `X` or `G` is changed in place.

    Args:
        X: One point with orthonormal columns (d, k).
        G: Euclidean gradient at `X`.
        side: "left" for rows, "right" for the reverse form (columns; k = d only).

    Example:
        >>> X, G = torch.eye(3), torch.arange(9.0).view(3, 3)
        >>> W = EdgeWeights(X, G)
        >>> W.entries(torch.tensor([[0, 2]])), W.evaluated
        (tensor([-4.]), 1)
    """

    def __init__(
        self, X: Float[Tensor, "d k"], G: Float[Tensor, "d k"], side: Side = "left"
    ) -> None:
        _validate.tall(X)
        if X.ndim != 2:
            raise ShapeError(
                f"`X` must be one matrix (d, k), one tournament: got shape {tuple(X.shape)}. "
                "Make one EdgeWeights for each matrix of the batch."
            )
        _validate.like(G, X, "G", "X")
        check_side(side, *X.shape)
        X, G = _at_least_float32(X), _at_least_float32(G)
        # Omega = A B^T - B A^T in both forms, with the point in B.
        self._A, self._B = (G, X) if side == "left" else (-G.mT, X.mT)
        self._start(X.shape[0], X.dtype, X.device)

    @classmethod
    def of(cls, omega: Float[Tensor, "d d"]) -> "EdgeWeights":
        """The tournament of a given skew matrix, which serves as the table of weights.

        Example:
            >>> EdgeWeights.of(torch.tensor([[0.0, 2.0], [-2.0, 0.0]])).h_norm("abs")
            4.0
        """
        check = check_skew(omega)
        if not check:
            raise NotOnManifoldError(check.reason)
        if omega.ndim != 2:
            raise ShapeError(
                f"`omega` must be one matrix (d, d): got {tuple(omega.shape)}. "
                "Make one EdgeWeights for each matrix of the batch."
            )
        self = cls.__new__(cls)
        omega = _at_least_float32(omega)
        self._start(omega.shape[0], omega.dtype, omega.device)
        self._table = (omega - omega.mT) / 2  # the check accepts rounding errors, a draw does not
        return self

    def _start(self, d: int, dtype: torch.dtype, device: torch.device) -> None:
        self.d = d
        self.dtype = dtype
        self.device = device
        self.evaluated = 0
        self._table: Tensor | None = None
        self._row_sums: dict[H, Tensor] = {}
        self._last: tuple[Partition, MatrixBlocks] | None = None

    @property
    def factors(self) -> tuple[Float[Tensor, "d k"], Float[Tensor, "d k"]] | None:
        r"""A and B of $\Omega = AB^\top - BA^\top$; None if Omega is in a table."""
        return None if self._table is not None else (self._A, self._B)

    @property
    def num_edges(self) -> int:
        """d(d-1)/2, the number of edges of the complete graph."""
        return self.d * (self.d - 1) // 2

    def entries(self, pairs: Int[Tensor, "m 2"]) -> Float[Tensor, "m"]:
        r"""$\Omega_{ij} = \langle G_i, X_j\rangle - \langle X_i, G_j\rangle$ for each row (i, j).

        Costs $O(mk)$ and counts m evaluations.
        """
        _validate.pairs(pairs, self.d)
        i, j = pairs.unbind(-1)
        if self._table is not None:
            return self._table[i, j]
        self.evaluated += len(pairs)
        A, B = self._A, self._B
        return (A[i] * B[j] - B[i] * A[j]).sum(-1)

    def blocks(self, partition: Partition) -> MatrixBlocks:
        r"""$\Omega$ inside each block: one (l, s, s) tensor for each block size of `partition`.

        Each block is $S - S^\top$ with $S = G_B X_B^\top$, by batched products: $O(dsk)$ in all.
        """
        self.check_partition(partition)
        if self._last is None or self._last[0] is not partition:
            self._last = partition, tuple(self._block(b) for b in partition.blocks)
        return self._last[1]

    def keep(self, partition: Partition, blocks: MatrixBlocks) -> None:
        """Store blocks that the caller has computed; `blocks(partition)` then returns them."""
        self._last = partition, blocks

    @no_autocast()
    def _block(self, b: Int[Tensor, "l s"]) -> Float[Tensor, "l s s"]:
        l, s = b.shape
        if self._table is not None:
            return self._table[b[:, :, None], b[:, None, :]]
        self.evaluated += l * s * (s - 1) // 2
        S = self._A[b] @ self._B[b].mT  # (l, s, s)
        return S - S.mT

    def row(self, i: int) -> Float[Tensor, "d"]:
        """Row i of Omega, in O(dk)."""
        if not 0 <= i < self.d:
            raise ShapeError(f"`i` must be a row in 0..{self.d - 1}: got {i}.")
        if self._table is None:
            self.evaluated += self.d - 1
        return self._rows(i, i + 1)[0]

    @no_autocast()
    def dense(self) -> Float[Tensor, "d d"]:
        """All of Omega, in O(d^2 k) time and O(d^2) memory; it is kept as a table."""
        if self._table is None:
            self.evaluated += self.num_edges
            S = self._A @ self._B.mT
            self._table = S - S.mT
        return self._table

    def row_sums(self, h: H = "abs") -> Float[Tensor, "d"]:
        r"""$R_i = \sum_j h(\Omega_{ij})$ in float64, cached for each h.

        For ``h="square"`` they are squared row norms and need no entry of $\Omega$: with
        $\Omega = UV^\top$, $U = [A, -B]$, $V = [B, A]$ row i has $u_i^\top (V^\top V) u_i$, in
        $O(dk^2)$. Any other h reads all of $\Omega$, several rows at a time.
        """
        weight_function(h)
        if h not in self._row_sums:
            if h == "square" and self._table is None:
                sums = self._squared_row_norms()
            else:
                if self._table is None:
                    self.evaluated += self.num_edges
                step = max(1, CHUNK // self.d)
                sums = torch.cat(
                    [h_values(h, self._rows(a, a + step)).sum(-1) for a in range(0, self.d, step)]
                )
            self._row_sums[h] = sums
        return self._row_sums[h]

    def row_norms(self) -> Float[Tensor, "d"]:
        """The Euclidean norm of each row of Omega, in O(dk^2), without computing an entry."""
        return self.row_sums("square").sqrt()

    def squared_norm(self) -> float:
        r"""$\|\Omega\|_F^2$, in $O(dk^2)$."""
        return self.row_sums("square").sum().item()

    def h_norm(
        self,
        h: H = "abs",
        *,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> float:
        r"""$\|h(\Omega)\|_1 = \sum_{i,j} h(\Omega_{ij})$ over the whole matrix, twice the triangle.

        With `num_samples` = r it is the Monte-Carlo estimate of Sec. 9.5.5: each of the
        $n = \binom d2$ edges is kept with probability r/n and counts n/r times. The paper's sum
        over i < j has half of the stated mean, so this one has a factor of 2.

        Args:
            h: Weight function.
            num_samples: Expected number of entries to read; the norm is exact when omitted.
            generator: Source of randomness; required with `num_samples`.
        """
        if num_samples is None:
            return self.row_sums(h).sum().item()
        if not 1 <= num_samples <= self.num_edges:
            raise ValueError(
                f"`num_samples` must lie between 1 and d(d-1)/2 = {self.num_edges}: got "
                f"{num_samples}. Omit it for the exact norm."
            )
        if generator is None:
            raise TypeError("`generator` is needed for the Monte-Carlo norm: pass a Generator.")
        _validate.generator(generator)
        weight_function(h)
        edges = _bernoulli_edges(self.d, num_samples / self.num_edges, generator)
        kept = h_values(h, self.entries(edges.to(self.device)))
        return 2 * self.num_edges / num_samples * kept.sum().item()

    def check_partition(self, partition: Partition) -> None:
        """Check that `partition` has the d rows of this tournament."""
        if partition.d != self.d:
            raise ShapeError(
                f"`partition` must cover the d={self.d} rows of this tournament: got one of "
                f"{partition.d} rows. Sample it from these weights."
            )

    @no_autocast()
    def _rows(self, start: int, stop: int) -> Float[Tensor, "n d"]:
        if self._table is not None:
            return self._table[start:stop]
        A, B = self._A[start:stop], self._B[start:stop]
        rows = A @ self._B.mT - B @ self._A.mT
        rows.diagonal(offset=start).zero_()  # the two products may round differently
        return rows

    @no_autocast()
    def _squared_row_norms(self) -> Float[Tensor, "d"]:
        A, B = self._A.to(torch.float64), self._B.to(torch.float64)
        # A -> A - B C with a symmetric C does not change Omega. This C removes the component of the
        # gradient normal to the manifold, which near an optimum is all of it and would cancel.
        C = B.mT @ A
        rounding = A.square().sum(-1) * B.square().sum() + B.square().sum(-1) * A.square().sum()
        A = A - B @ (C + C.mT) * (B.shape[1] / (2 * B.square().sum()))
        U, V = torch.cat([A, -B], dim=1), torch.cat([B, A], dim=1)  # (d, 2k)
        gram = V.mT @ V
        sums = ((U @ gram) * U).sum(-1)
        # Smaller sums are rounding errors of terms that cancel.
        size = ((U.abs() @ gram.abs()) * U.abs()).sum(-1)
        floor = torch.maximum(1e-13 * size, 1e-30 * rounding)
        return torch.where(sums > floor, sums, torch.zeros_like(sums))


def _at_least_float32(A: Tensor) -> Tensor:
    return A if A.dtype in (torch.float32, torch.float64) else A.float()


def edge_from_index(index: Int[Tensor, "m"], d: int) -> Int[Tensor, "m 2"]:
    """The edge (i, j), i < j, with the given index in the row-by-row order of the triangle.

    Example:
        >>> edge_from_index(torch.arange(6), 4).tolist()
        [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    """
    # Counted from the end, row i is the last one with (d-i)(d-i-1)/2 edges at or after it.
    last = d * (d - 1) // 2 - 1 - index
    t = ((torch.sqrt(8.0 * last.to(torch.float64) + 1.0) - 1.0) / 2.0).to(torch.int64)
    t = torch.where((t + 1) * (t + 2) // 2 <= last, t + 1, t)  # the root may be off by one ulp
    t = torch.where(t * (t + 1) // 2 > last, t - 1, t)
    i = d - 2 - t
    j = d - 1 - (last - t * (t + 1) // 2)
    return torch.stack([i, j], dim=-1)


def _bernoulli_edges(d: int, probability: float, generator: torch.Generator) -> Int[Tensor, "m 2"]:
    """Edges that are each kept independently: a binomial number of distinct edges.

    Distinct indices are drawn by rejection, so the memory is that of the result, not the triangle.
    """
    n = d * (d - 1) // 2
    device = generator.device
    count = int(
        torch.binomial(
            torch.tensor(float(n), dtype=torch.float64, device=device),
            torch.tensor(probability, dtype=torch.float64, device=device),
            generator=generator,
        )
    )
    if 2 * count > n:
        index = torch.randperm(n, generator=generator, device=device)[:count]
        return edge_from_index(index, d)
    found = torch.empty(0, dtype=torch.int64, device=device)
    while len(found) < count:
        more = torch.randint(n, (count - len(found),), generator=generator, device=device)
        found = torch.unique(torch.cat([found, more]))
    return edge_from_index(found, d)
