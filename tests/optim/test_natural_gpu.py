"""Natural steps on CUDA: those of the CPU, by kernels, in graphs of users; NaN is told later."""

import pytest
import torch

from helpers import randn, random_stiefel
from skewflow.errors import NonFiniteGradientError
from skewflow.geometry import orthogonality_error
from skewflow.optim import NaturalSGD

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SHAPES = [(300, 200, 20), (128, 128, 16), (700, 64, 30), (60, 90, 8)]


def made(d, k, r, generator):
    """A point, as a parameter and in float64 on the CPU, and seven pairs of factors."""
    wide = d < k
    X = random_stiefel(max(d, k), min(d, k), generator=generator, dtype=torch.float64)
    X = X.mT.contiguous() if wide else X
    pairs = [
        [randn(n, r, generator=generator, dtype=torch.float32) for n in (d, k)] for _ in "abcdefg"
    ]
    return torch.nn.Parameter(X.float().cuda()), torch.nn.Parameter(X), pairs


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_steps_are_those_of_float64_on_the_cpu(shape, generator):
    p, q, pairs = made(*shape, generator)
    ours, theirs = (NaturalSGD([X], 5e-4) for X in (p, q))
    for A, B in pairs:
        ours.step(factors={p: (A.cuda(), B.cuda())})
        theirs.step(factors={q: (A.double(), B.double())})
    torch.testing.assert_close(p.detach().double().cpu(), q.detach(), rtol=0, atol=1e-4)
    inverse = ours.state[p]["inverse_moment"]
    torch.testing.assert_close(
        inverse.double().cpu(), theirs.state[q]["inverse_moment"], rtol=0, atol=1e-4
    )
    (workspace,) = ours._shared.low_rank.natural._workspaces.values()
    (launches,) = workspace._rest.values()
    assert launches._graph is not None
    tall = p.detach() if shape[0] >= shape[1] else p.detach().mT
    assert orthogonality_error(tall).max() / min(shape[:2]) ** 0.5 < 1e-6


def test_coarse_products_turn_the_direction_only(generator, monkeypatch):
    p, q, pairs = made(300, 200, 20, generator)
    monkeypatch.setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32")
    ours, theirs = (NaturalSGD([X], 5e-4) for X in (p, q))
    for A, B in pairs:
        ours.step(factors={p: (A.cuda(), B.cuda())})
        theirs.step(factors={q: (A.double(), B.double())})
    error = (p.detach().double().cpu() - q.detach()).abs().max()
    assert 1e-6 < error < 2e-3
    inverse = ours.state[p]["inverse_moment"].double().cpu()
    torch.testing.assert_close(inverse, theirs.state[q]["inverse_moment"], rtol=0, atol=1e-4)
    assert orthogonality_error(p.detach()) / 200**0.5 < 1e-6


def test_a_graph_of_the_user_goes_on_with_the_moment(generator):
    p, _, pairs = made(300, 200, 20, generator)
    q = torch.nn.Parameter(p.detach().clone())
    ours, theirs = (NaturalSGD([X], 5e-4) for X in (p, q))
    A, B = (F.cuda() for F in pairs[0])
    for optimizer, X in ((ours, p), (theirs, q)):
        for _ in range(2):
            optimizer.step(factors={X: (A, B)})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours.step(factors={p: (A, B)})
    for left, right in pairs[1:]:
        A.copy_(left)
        B.copy_(right)
        graph.replay()
        theirs.step(factors={q: (A, B)})
    torch.testing.assert_close(p.detach(), q.detach(), rtol=0, atol=1e-6)
    assert torch.equal(ours.state[p]["moment_numbers"], theirs.state[q]["moment_numbers"])


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize(
    "rank, before, reason", [(150, 150, "no kernel takes"), (20, 40, "first of its rank")]
)
def test_what_cannot_be_captured_is_refused(rank, before, reason, generator):
    p, _, pairs = made(800, 700, 150, generator)
    A, B = (F.cuda() for F in pairs[0])
    optimizer = NaturalSGD([p], 5e-4)
    optimizer.step(factors={p: (A[:, :before], B[:, :before])})
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match=reason), torch.cuda.graph(graph):
        optimizer.step(factors={p: (A[:, :rank], B[:, :rank])})


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("value", [torch.nan, 1e30])
def test_what_cannot_be_used_stays_out_of_the_moment_and_is_told(place, steps, value, generator):
    p, _, pairs = made(300, 200, 20, generator)
    optimizer = NaturalSGD([p], 5e-4)
    for A, B in pairs[:steps]:
        optimizer.step(factors={p: (A.cuda(), B.cuda())})
    before, state = p.detach().clone(), optimizer.state[p]
    memory = [state[key].clone() for key in ("inverse_moment", "moment_numbers")]
    bad = [F.cuda() for F in pairs[5]]
    bad[place][3, 2] = value
    optimizer.step(factors={p: tuple(bad)})
    torch.cuda.synchronize()
    assert torch.equal(p.detach(), before)
    assert torch.equal(memory[0], state["inverse_moment"])
    assert torch.equal(memory[1], state["moment_numbers"])
    good = {p: tuple(F.cuda() for F in pairs[6])}
    with pytest.raises(NonFiniteGradientError):
        optimizer.step(factors=good)
    optimizer.step(factors=good)
    torch.cuda.synchronize()
    assert not torch.equal(p.detach(), before)
