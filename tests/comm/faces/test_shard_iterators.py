"""An iterator that is sharded keeps what it has besides samples."""

import pytest
from dl_comm.shard_iterators import IteratorShard, iterator_shard


class Flow:
    """Like what Keras' flow() returns: endless, with a length, entries and attributes of its own."""

    def __init__(self):
        self.n, self.batch_size, self.at = 28, 4, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        return (self.at - 1) % 7

    def __len__(self):
        return 7

    def __getitem__(self, i):
        return i

    def reset(self):
        self.at = 0


@pytest.mark.parametrize("n", [2, 3])
def test_each_rank_gets_every_nth_sample_and_all_attributes(n):
    for rank in range(n):
        mine = iterator_shard(Flow(), rank, n)
        assert [next(mine) for _ in range(3)] == [(k * n + rank) % 7 for k in range(3)]
        assert (mine.n, mine.batch_size, len(mine)) == (28, 4, -(-7 // n))
        assert [mine[k] for k in range(len(mine))] == [(k * n + rank) % 7 for k in range(len(mine))]
        mine.reset()
        assert next(mine) == rank
        with pytest.raises(AttributeError):
            _ = mine.class_indices


def test_a_generator_stays_one():
    mine = iterator_shard((k for k in range(6)), 1, 2)
    assert not isinstance(mine, IteratorShard)
    assert list(mine) == [1, 3, 5]
