"""The parts of an exact step of a sharded weight that need no other process."""

import pytest
import torch

from helpers import assert_close, randn
from skewflow.errors import NonFiniteError
from skewflow.geometry import project
from skewflow.optim.sharded.exact_step import orthonormal


def test_a_point_is_made_orthonormal_from_its_gram_matrix(generator):
    Y = project(randn(1, 9, 4, generator=generator)) + 0.1 * randn(1, 9, 4, generator=generator)
    P = Y.mT @ Y - torch.eye(4)
    found = orthonormal(Y, P, torch.linalg.matrix_norm(P))
    assert_close("polar factor", project(Y), found)


@pytest.mark.parametrize("bound", [float("inf"), float("nan")])
def test_products_that_are_not_finite_are_refused(bound):
    # No number of rounds brings an infinite matrix to the identity.
    with pytest.raises(NonFiniteError, match="other than its optimiser has written .* Load orth"):
        orthonormal(torch.eye(3)[None], torch.eye(3)[None], torch.tensor([bound]))
