"""The tangent part of a direction: the projection, for one matrix or many, in given memory."""

import pytest
import torch

from helpers import randn, random_stiefel
from skewflow.geometry import tangent_project
from skewflow.kernels.tangent import tangent_part


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize("d, k", [(9, 4), (6, 6), (5, 1)])
def test_it_is_the_projection(d, k, batch, generator):
    X = random_stiefel(d, k, batch=batch, generator=generator)
    D = randn(*batch, d, k, generator=generator)
    before, expected = D.clone(), tangent_project(X, D)
    torch.testing.assert_close(tangent_part(X, D), expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(tangent_part(X, D, X.mT @ D), expected, rtol=0, atol=1e-14)
    assert torch.equal(D, before)
    assert tangent_part(X, D, out=D) is D
    torch.testing.assert_close(D, expected, rtol=0, atol=1e-14)


def test_what_is_known_is_not_computed_again(generator):
    X = random_stiefel(9, 4, generator=generator)
    D, S = randn(9, 4, generator=generator), randn(4, 4, generator=generator)
    expected = D - X @ (S + S.mT) / 2
    torch.testing.assert_close(tangent_part(X, D, S), expected, rtol=0, atol=1e-14)
