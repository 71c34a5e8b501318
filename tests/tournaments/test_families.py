import pytest
import torch

from helpers import assert_close
from skewflow.errors import BlockSizeError, FamilyError
from skewflow.tournaments import Family, Partition, non_intersecting, round_robin


def check_each_edge_once(family, sizes):
    seen = torch.zeros(family.d, family.d)
    for T in family:
        assert T.sizes == sizes
        i, j = T.edges().unbind(-1)
        seen[i, j] += 1
    assert_close("edges", torch.ones(family.d, family.d).triu(1), seen)


@pytest.mark.parametrize("d", [2, 3, 4, 5, 6, 7, 16, 33, 100])
def test_round_robin_is_a_one_factorisation(d):
    family = round_robin(d)
    assert len(family) == (d - 1 if d % 2 == 0 else d)
    check_each_edge_once(family, (2,) * (d // 2) + (1,) * (d % 2))


@pytest.mark.parametrize("q, n", [(3, 2), (3, 3), (5, 2), (7, 2), (11, 2)])
def test_parallel_classes_of_affine_lines_hold_each_edge_once(q, n):
    family = non_intersecting(q**n, q)
    assert family.d == q**n and len(family) == (q**n - 1) // (q - 1)
    check_each_edge_once(family, (q,) * q ** (n - 1))


def test_the_affine_plane_of_order_three_has_four_classes_of_three_lines():
    family = non_intersecting(9, 3)
    assert len(family) == 4
    check_each_edge_once(family, (3, 3, 3))


def test_a_plane_without_one_of_its_points_is_a_family_of_uneven_blocks():
    family = Family(
        Partition.of([[row for row in block if row < 8] for block in T])
        for T in non_intersecting(9, 3)
    )
    check_each_edge_once(family, (3, 3, 2))


def test_one_block_of_all_rows_is_a_family():
    assert [T.sizes for T in non_intersecting(6, 6)] == [(6,)]


def test_colours_say_which_member_holds_an_edge():
    family = round_robin(7)
    colours = family.colours
    assert (colours.diagonal() == -1).all() and torch.equal(colours, colours.mT)
    for r, T in enumerate(family):
        assert all(colours[i, j] == r for i, j in T.edges().tolist())


def test_round_robin_is_lazy():
    T = round_robin(1_000_000)[123_456]
    assert T.d == 1_000_000


@pytest.mark.bad_input
def test_no_family_exists_where_the_counts_do_not_divide():
    with pytest.raises(
        FamilyError, match=r"d=6, block_size=3: none with blocks of equal size.*5/2.*Uniform"
    ):
        non_intersecting(6, 3)


@pytest.mark.bad_input
def test_a_design_that_is_not_implemented_says_so():
    with pytest.raises(FamilyError, match="resolvable design may exist, but only"):
        non_intersecting(15, 3)
    with pytest.raises(FamilyError, match="resolvable design may exist, but only"):
        non_intersecting(16, 4)


@pytest.mark.bad_input
def test_a_family_must_hold_each_edge_exactly_once():
    one, two = Partition.of([[0, 1], [2]]), Partition.of([[0, 2], [1]])
    with pytest.raises(FamilyError, match=r"edge \(1, 2\) lies in 0 of the 2"):
        Family([one, two])
    with pytest.raises(FamilyError, match=r"edge \(0, 1\) lies in 2"):
        Family([one, one, two])
    with pytest.raises(FamilyError, match="same rows: got d=3 and d=2"):
        Family([one, Partition.of([[0, 1]])])
    with pytest.raises(FamilyError, match="at least one"):
        Family([])


@pytest.mark.bad_input
def test_round_robin_needs_two_rows_and_a_round_that_exists():
    with pytest.raises(BlockSizeError, match="at least d=2"):
        round_robin(1)
    with pytest.raises(IndexError, match=r"0..4: got 5"):
        round_robin(6)[5]
    with pytest.raises(IndexError, match=r"0..3: got 4"):
        non_intersecting(9, 3)[4]
