"""Starts and rounding: from linear solutions and factors of any rank to rotations."""

import numpy as np

from ..block_sdp.factor import factorise
from ..block_sdp.reference import Array
from .cost import laplacian
from .pose_graph import PoseGraph


def nearest_rotations(A: Array) -> Array:
    """The nearest rotation of each matrix (n, d, d)."""
    U, _, W = np.linalg.svd(A)
    U[..., -1] *= np.linalg.det(U @ W)[:, None]
    return U @ W


def chordal_start(graph: PoseGraph) -> Array:
    """Rotations (n, d, d) from the linear least-squares problem without constraints."""
    d = graph.d
    L = laplacian(graph, np.ones(len(graph.edges)))
    factor = factorise(L[d:, d:].tocsr())
    assert factor is not None, "the reduced Laplacian of a connected graph is definite"
    rest = factor.solve(-L[d:, :d].toarray())
    Y = np.concatenate([np.eye(d), rest]).reshape(graph.n, d, d)
    return nearest_rotations(Y.mT)


def rounded(Y: Array) -> Array:
    """Rotations (n, d, d) from a factor (n, d, r): the best d columns, then the nearest ones."""
    n, d, r = Y.shape
    _, _, W = np.linalg.svd(np.linalg.qr(Y.reshape(n * d, r), mode="r"))
    X = Y @ W[:d].T
    if (np.linalg.det(X) < 0).sum() * 2 > n:  # the whole solution may be mirrored
        X[..., -1] *= -1
    return nearest_rotations(X.mT)
