"""Cost matrices of block-diagonal semidefinite programs, as the solver sees them."""

import math
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp  # type: ignore[import-untyped]

from .factor import Factor, factorise
from .reference import Array

_ROUNDOFF = 2.0**-53


class Cost(Protocol):
    """A symmetric matrix C of n x n blocks of size p."""

    n: int
    p: int
    size: float
    """A scale for <C, Z>, to tell a value that is zero up to rounding."""

    def apply(self, Y: Array) -> Array:
        """C Y for Y (n, p, r)."""
        ...

    def shifted(self, D: Array, tight: bool = False) -> "Shifted | None":
        """Factorise C + D for a block-diagonal D (n, p, p); None if not positive definite.

        With `tight`, the bound on the rounding errors is as small as can be had.
        """
        ...


class Shifted:
    """A factorised C + D, and the lower bound on the program that it proves."""

    def __init__(self, D: Array, excess: Array, solve: Any) -> None:
        self._solve = solve
        trace = np.trace(D, axis1=1, axis2=2)
        self.bound = -math.fsum([*trace, *excess])
        r"""A lower bound on <C, Z> over all feasible Z.

        $C + D + \\mathrm{diag}(w) \\succeq 0$ and $Z_{ii} = I$ give
        $\\langle C, Z\\rangle \\ge -\\mathrm{tr}\\,D - \\sum w$, whatever D is.
        """

    def solve(self, V: Array) -> Array:
        """(C + D)⁻¹ V for V (n, p, r)."""
        return self._solve(V)


class SparseCost:
    """A sparse C, in compressed rows."""

    def __init__(self, C: Any, p: int) -> None:
        self.matrix, self.p, self.n = C, p, C.shape[0] // p
        self.size = float(abs(C).sum())

    def apply(self, Y: Array) -> Array:
        """C Y."""
        return (self.matrix @ Y.reshape(self.n * self.p, -1)).reshape(Y.shape)

    def shifted(self, D: Array, tight: bool = False) -> Shifted | None:
        """Factorise C + D."""
        A = self.matrix + block_diagonal(D)
        factor = factorise(A)
        if factor is None:
            return None
        # Adding the blocks has rounded each of their entries once.
        excess = factor.tight() if tight else factor.excess
        excess = excess + 2 * _ROUNDOFF * np.asarray(abs(A).sum(axis=1)).ravel()
        return Shifted(D, excess, lambda V: _flat(factor, V))


def block_diagonal(D: Array) -> Any:
    """Blocks (n, p, p) as one sparse matrix."""
    n, p, _ = D.shape
    return sp.bsr_matrix((D, np.arange(n), np.arange(n + 1)), shape=(n * p, n * p)).tocsr()


def _flat(factor: Factor, V: Array) -> Array:
    return np.ascontiguousarray(factor.solve(V.reshape(-1, V.shape[-1]))).reshape(V.shape)
