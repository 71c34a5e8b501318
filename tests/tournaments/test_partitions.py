import numpy as np
import pytest
import torch

from skewflow.errors import BlockSizeError, ShapeError, TooLargeError
from skewflow.tournaments import Partition, block_sizes
from skewflow.tournaments.theory import enumerate_partitions, num_partitions


@pytest.mark.parametrize("d, s", [(6, 2), (7, 2), (7, 3), (10, 4), (5, 5)])
def test_a_permutation_is_cut_into_blocks_of_the_right_sizes(d, s, generator):
    order = torch.randperm(d, generator=generator)
    T = Partition.from_order(order, block_sizes(d, s))
    assert sorted(row for block in T for row in block) == list(range(d))
    assert T.sizes == tuple(size for size, count in block_sizes(d, s) for _ in range(count))
    assert T.num_edges == len(T.edges()) == sum(s * (s - 1) // 2 for s in T.sizes)
    assert (T.edges()[:, 0] < T.edges()[:, 1]).all()


def test_relabelling_moves_every_block(generator):
    T = Partition.of([[0, 3], [1, 2], [4]])
    names = torch.tensor([4, 2, 0, 1, 3])
    assert T.relabel(names).key() == {(1, 4), (0, 2), (3,)}


def test_rows_that_all_stand_alone_have_no_edge():
    T = Partition.of([[0], [1], [2]])
    assert T.edges().shape == (0, 2) and T.num_edges == 0


def test_the_order_of_blocks_and_rows_does_not_matter():
    assert Partition.of([[3, 0], [2, 1]]).key() == Partition.of([[1, 2], [0, 3]]).key()


@pytest.mark.parametrize("d, s", [(4, 2), (7, 2), (7, 3), (8, 3), (9, 4), (5, 5)])
def test_enumeration_lists_each_partition_once(d, s):
    keys = [T.key() for T in enumerate_partitions(d, s)]
    assert len(keys) == len(set(keys)) == num_partitions(d, s)


@pytest.mark.bad_input
@pytest.mark.parametrize("s", [1, 0, -2, 7])
def test_a_block_size_outside_two_and_d_is_refused(s):
    with pytest.raises(BlockSizeError, match=rf"between 2 .* d=6 .*block_size={s}"):
        block_sizes(6, s)


@pytest.mark.bad_input
@pytest.mark.parametrize("s", [True, 2.0, None, "2", (2.0, 4.0)])
def test_a_block_size_that_is_no_integer_is_refused(s):
    with pytest.raises(BlockSizeError, match=r"must be an integer: got .*Use e.g. 2"):
        block_sizes(6, s)


def test_any_integer_type_is_a_block_size():
    assert block_sizes(6, np.int64(2)) == block_sizes(6, 2)


@pytest.mark.bad_input
def test_one_row_has_nothing_to_rotate():
    with pytest.raises(BlockSizeError, match="at least d=2 rows: got d=1"):
        block_sizes(1, 2)


@pytest.mark.bad_input
@pytest.mark.parametrize("sizes", [(3, 2), (1,) * 6, (), (7, -1), (6, 0)])
def test_sizes_that_do_not_fit_are_refused(sizes):
    with pytest.raises(BlockSizeError, match="sum to d=6"):
        block_sizes(6, sizes)


@pytest.mark.bad_input
@pytest.mark.parametrize("blocks", [[[0, 1], [1, 2]], [[0, 2]], [[1, 2]]])
def test_blocks_that_are_no_partition_are_refused(blocks):
    with pytest.raises(ShapeError, match="each row 0..d-1 exactly once"):
        Partition.of(blocks)


def test_enumeration_of_a_large_family_is_refused():
    with pytest.raises(TooLargeError, match="limit is 200000"):
        enumerate_partitions(16, 2)
