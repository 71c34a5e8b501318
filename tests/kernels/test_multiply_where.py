"""Products that only some matrices need: the CUDA kernel, and exact steps that use it."""

import pytest
import torch

from helpers import assert_close, randn, random_stiefel
from skewflow.kernels.exact_exponential import batched as exponential
from skewflow.kernels.exact_exponential import series
from skewflow.kernels.exact_polar import batched as polar
from skewflow.kernels.exact_step import exact_step
from skewflow.kernels.multiply_where import reference

pytest.importorskip("triton")

from skewflow.kernels.multiply_where._triton import multiply_where_

pytestmark = pytest.mark.usefixtures("poisoned_memory")


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("a, b, c", [(1, 1, 1), (5, 40, 17), (130, 7, 20), (33, 65, 129)])
def test_live_matrices_are_multiplied_and_the_others_left(a, b, c, each, generator, device):
    A = randn(3, b, a, generator=generator, dtype=torch.float32).to(device).mT
    B = randn(3, b, c, generator=generator, dtype=torch.float32).to(device)
    C = randn(3, a, c, generator=generator, dtype=torch.float32).to(device)
    out = randn(3, a, c, generator=generator, dtype=torch.float32).to(device)
    live = torch.tensor([True, False, True], device=device)
    alpha = torch.tensor([0.5, 1.5, 2.0], device=device) if each else -0.5
    for added, beta in ((None, 0.0), (C, 1.5)):
        ours, theirs = out.clone(), out.clone()
        multiply_where_(ours, A, B, live, added, alpha, beta)
        reference.multiply_where_(theirs, A, B, live, added, alpha, beta)
        assert_close("out", theirs.cpu(), ours.cpu(), torch.float32)
        assert torch.equal(ours[1], out[1])


@pytest.mark.parametrize("retraction", ["exp", "polar"])
@pytest.mark.parametrize("shape", [(10, 10), (10, 3)], ids=str)
def test_exact_steps_are_the_same_when_the_device_decides(
    shape, retraction, generator, device, monkeypatch
):
    X = random_stiefel(*shape, batch=(4,), generator=generator, dtype=torch.float32).to(device)
    D = randn(4, *shape, generator=generator, dtype=torch.float32).to(device)
    D *= torch.tensor([0.01, 0.3, 5.0, 1e5], device=device)[:, None, None]
    expected = exact_step(X.cpu(), D.cpu(), 1.0, retraction)

    for module in (exponential, series, polar):
        monkeypatch.setattr(module, "num_rounds", lambda needed, most, A: most)
        fused = lambda out, A, B, live, C=None, alpha=1.0, beta=0.0: multiply_where_(  # noqa: E731
            out, A, B, live, C, alpha, beta
        )
        monkeypatch.setattr(module, "multiply_where_", fused)
    Y = exact_step(X, D, 1.0, retraction).cpu()
    I = torch.eye(shape[1]).expand(4, -1, -1)
    assert_close("Y^T Y", I, Y.mT @ Y, torch.float32)
    assert_close("small steps", expected[:2], Y[:2], torch.float32)
    # The angle of the third is known to 6e-8 of about 30, that of the fourth not at all.
    assert_close("a large step", expected[2], Y[2], torch.float32, factor=30)
