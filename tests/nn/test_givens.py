import pytest
import torch

from helpers import assert_close, randn, random_stiefel
from skewflow.errors import BlockSizeError, DtypeError, ShapeError
from skewflow.geometry import check_special, givens
from skewflow.nn import GivensLinear
from skewflow.samplers import RelabelledRoundRobin
from skewflow.tournaments import (
    EdgeWeights,
    Partition,
    heavy_matchings,
    non_intersecting,
    round_robin,
)

D = torch.float64


@pytest.mark.parametrize("d, n", [(2, 1), (3, 7), (6, 5), (7, 7), (16, 40)])
def test_the_layer_is_the_product_of_its_rotations(d, n, generator):
    layer = GivensLinear(d, n, dtype=D)
    with torch.no_grad():
        layer.bias.copy_(randn(d, generator=generator))
    W = torch.eye(d, dtype=D)
    for edges, angles in zip(layer.pairs, layer.angles.detach(), strict=True):
        for (i, j), angle in zip(edges.tolist(), angles.tolist(), strict=True):
            W = givens(d, i, j, angle, dtype=D) @ W
    assert_close("weight", W, layer.weight)
    assert check_special(layer.weight.detach())
    x = randn(4, 3, d, generator=generator)
    assert_close("output", x @ W.mT + layer.bias, layer(x))


def test_d_less_one_rounds_of_round_robin_reach_any_rotation(generator):
    target = random_stiefel(6, generator=generator)
    target[0] *= torch.linalg.det(target)
    torch.manual_seed(0)
    layer = GivensLinear(6, 5, bias=False, dtype=D)
    assert layer.angles.numel() == 15  # the dimension of SO(6)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=300, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = (layer.weight - target).square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    assert loss() < 1e-6


def test_any_schedule_of_matchings_will_do(generator):
    W = EdgeWeights.of(torch.tensor([[0.0, 5, 1], [-5, 0, 2], [-1, -2, 0]]))
    layer = GivensLinear(3, 7, heavy_matchings(W))
    assert layer.pairs[:, 0].tolist() == [[0, 1], [1, 2], [0, 2]] * 2 + [[0, 1]]
    draws = RelabelledRoundRobin()
    omega = EdgeWeights.of(torch.zeros(9, 9))
    random = [draws.sample(omega, generator=generator).partition for _ in range(4)]
    layer = GivensLinear(9, 4, random)
    assert [sorted(map(tuple, pairs)) for pairs in layer.pairs.tolist()] == [
        sorted(map(tuple, T.edges().tolist())) for T in random
    ]
    alone = GivensLinear(5, 1, [Partition.of([[1, 3], [0], [2], [4]])])
    assert alone.pairs.tolist() == [[[1, 3], [0, 2]]]


@pytest.mark.bad_input
def test_what_does_not_fit_is_refused():
    for d in (0, 1):
        with pytest.raises(BlockSizeError, match=f"at least d=2 rows: got d={d}"):
            GivensLinear(d, 3)
    for rounds in (0, 2.0, True):
        with pytest.raises(ValueError, match="`num_rounds` must be a whole number"):
            GivensLinear(4, rounds)
    with pytest.raises(ValueError, match="`schedule` must hold a partition"):
        GivensLinear(4, 1, [])
    with pytest.raises(ShapeError, match="must have d=4 rows: got one of 3"):
        GivensLinear(4, 1, [Partition.of([[0, 1], [2]])])
    with pytest.raises(BlockSizeError, match="at most two rows.*got one of 3"):
        GivensLinear(9, 1, non_intersecting(9, 3))
    layer = GivensLinear(4, 2)
    with pytest.raises(ShapeError, match=r"`x` must have the shape \(\*batch, 4\): got \(2, 5\)"):
        layer(torch.zeros(2, 5))
    with pytest.raises(DtypeError, match="`x` must be a real floating-point"):
        layer(torch.zeros(2, 4, dtype=torch.int64))


@pytest.mark.bad_input
def test_the_state_of_another_size_cannot_lead_outside_of_the_vectors():
    layer = GivensLinear(6, 5, bias=False)
    before = layer.angles.detach().clone()
    damaged = dict(layer.state_dict(), pairs=torch.full_like(layer.pairs, 9))
    twice = dict(layer.state_dict(), pairs=torch.zeros_like(layer.pairs))
    for state in (GivensLinear(7, 5, bias=False).state_dict(), damaged, twice):
        with pytest.raises(ShapeError, match="`pairs` must pair different rows of d=6"):
            layer.load_state_dict(state)
    assert torch.equal(layer.angles, before)


def test_a_state_brings_its_schedule_and_a_reset_the_layer_s_own():
    first = GivensLinear(4, 3, [Partition.of([[0, 3], [1, 2]])])
    second = GivensLinear(4, 3)
    own = second.pairs.clone()
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.pairs, first.pairs)
    assert torch.equal(second.weight, first.weight)
    second.reset_parameters()
    assert torch.equal(second.pairs, own) and not torch.equal(own, first.pairs)
    first.pairs.zero_()
    first.reset_parameters()
    assert first.pairs.tolist() == [[[0, 3], [1, 2]]] * 3


@pytest.mark.parametrize("d", [2, 3, 6, 7])
def test_rounds_are_those_of_round_robin_from_its_start_again(d):
    family = round_robin(d)
    expected = [family[r % len(family)].edges().tolist() for r in range(2 * d)]
    assert GivensLinear(d, 2 * d).pairs.tolist() == expected
