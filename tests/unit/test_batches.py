import numpy as np
import pytest
import torch

from twoscale.data.batches import Batches, Prefetched, held_out_sequences
from twoscale.errors import InputError

BLOCK = 8


@pytest.fixture
def shard(tmp_path):
    """A memory map of ten whole blocks and 3 tokens more, in which every token is its own position."""
    path = tmp_path / "train.bin"
    np.arange(10 * BLOCK + 4, dtype="<u2").tofile(path)
    return np.memmap(path, dtype="<u2", mode="r")


def starts(batches, steps):
    return np.concatenate([batches.indices(step) for step in steps])


@pytest.mark.parametrize("order", ["permutation", "offsets"])
def test_a_batch_is_tokens_and_the_tokens_after_them(shard, order):
    batches = Batches(shard, BLOCK, 3, order, seed=1)
    inputs, targets = batches[5]
    assert inputs.shape == targets.shape == (3, BLOCK)
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.is_contiguous()
    assert targets.is_contiguous()
    expected = torch.from_numpy(batches.indices(5))[:, None] + torch.arange(BLOCK)
    assert torch.equal(inputs, expected)
    assert torch.equal(targets, expected + 1)


@pytest.mark.parametrize("order", ["permutation", "offsets"])
def test_a_batch_is_a_function_of_seed_and_step(shard, order):
    in_order = Batches(shard, BLOCK, 3, order, seed=1)
    forwards = [in_order[step][0] for step in range(12)]
    shuffled = Batches(shard, BLOCK, 3, order, seed=1)
    for step in (11, 0, 7, 3, 3, 10):
        assert torch.equal(shuffled[step][0], forwards[step])
    other = Batches(shard, BLOCK, 3, order, seed=2)
    assert any(not torch.equal(other[step][0], forwards[step]) for step in range(12))


@pytest.mark.parametrize("order", ["permutation", "offsets"])
def test_reading_ahead_gives_the_same_batches_in_any_order(shard, order):
    direct = Batches(shard, BLOCK, 3, order, seed=1)
    ahead = Prefetched(Batches(shard, BLOCK, 3, order, seed=1))
    for step in (0, 1, 2, 3, 7, 8, 2, 2, 11):  # in a row, over an epoch's border, and with jumps
        for found, wanted in zip(ahead[step], direct[step], strict=True):
            assert torch.equal(found, wanted)


def test_permutation_reads_every_block_once_an_epoch(shard):
    batches = Batches(shard, BLOCK, 5, "permutation", seed=1)
    for epoch in range(4):
        seen = starts(batches, (2 * epoch, 2 * epoch + 1))
        assert sorted(seen) == [BLOCK * block for block in range(10)]


def test_each_epoch_has_an_order_of_its_own(shard):
    batches = Batches(shard, BLOCK, 10, "permutation", seed=1)
    orders = {tuple(batches.indices(epoch)) for epoch in range(5)}
    assert len(orders) == 5


def test_batches_run_across_the_border_of_an_epoch(shard):
    batches = Batches(shard, BLOCK, 4, "permutation", seed=1)  # the third batch has 2 blocks of each epoch
    row = starts(batches, range(5))
    assert sorted(row[:10]) == sorted(row[10:]) == [BLOCK * block for block in range(10)]


def test_a_batch_may_be_larger_than_an_epoch(shard):
    batches = Batches(shard, BLOCK, 25, "permutation", seed=1)
    first, second = batches.indices(0), batches.indices(1)
    assert len(first) == len(second) == 25
    assert sorted(np.concatenate([first, second])) == sorted(5 * [BLOCK * block for block in range(10)])


def test_the_row_of_blocks_does_not_depend_on_the_size_of_the_batch(shard):
    small = starts(Batches(shard, BLOCK, 2, "permutation", seed=1), range(15))
    large = starts(Batches(shard, BLOCK, 6, "permutation", seed=1), range(5))
    np.testing.assert_array_equal(small, large)


def test_offsets_reach_every_start_that_has_a_target_and_no_other(shard):
    seen = set(starts(Batches(shard, BLOCK, 50, "offsets", seed=1), range(40)).tolist())
    assert seen == set(range(len(shard) - BLOCK))


@pytest.mark.parametrize("order", ["permutation", "offsets"])
def test_one_block_and_a_target_are_enough(shard, order):
    inputs, targets = Batches(shard[: BLOCK + 1], BLOCK, 2, order, seed=1)[3]
    assert inputs.tolist() == [list(range(BLOCK))] * 2
    assert targets.tolist() == [list(range(1, BLOCK + 1))] * 2


@pytest.mark.parametrize("length", [0, 1, BLOCK])
def test_less_than_one_block_and_a_target_is_refused(shard, length):
    with pytest.raises(InputError, match=f"found {length}, expected at least {BLOCK + 1}"):
        Batches(shard[:length], BLOCK, 2, "permutation", seed=1)


def test_unknown_order_is_refused(shard):
    with pytest.raises(InputError, match=r"train\.order: found 'sorted', expected one of permutation, offsets"):
        Batches(shard, BLOCK, 2, "sorted", seed=1)


def test_ids_of_the_upper_half_of_uint16_stay_positive():
    shard = np.full(BLOCK + 1, 65535, dtype="<u2")
    assert Batches(shard, BLOCK, 1, "permutation", seed=1)[0][0].unique().tolist() == [65535]


def test_batches_do_not_change_the_shard_or_follow_it_into_memory(shard):
    before = shard.copy()
    inputs, _ = Batches(shard, BLOCK, 3, "permutation", seed=1)[0]
    inputs.zero_()
    np.testing.assert_array_equal(shard, before)


def test_held_out_sequences_are_the_first_blocks_in_order(shard):
    inputs, targets = held_out_sequences(shard, BLOCK, 10)
    assert inputs.shape == targets.shape == (10, BLOCK)
    assert inputs.flatten().tolist() == list(range(10 * BLOCK))
    assert targets.flatten().tolist() == list(range(1, 10 * BLOCK + 1))
    assert torch.equal(held_out_sequences(shard, BLOCK, 4)[0], inputs[:4])


def test_more_held_out_sequences_than_there_are_is_refused(shard):
    with pytest.raises(InputError, match=r"found 84, 10 sequences .* expected 11 sequences"):
        held_out_sequences(shard, BLOCK, 11)


def test_the_last_block_needs_a_target_for_its_last_token(shard):
    with pytest.raises(InputError, match="9 sequences"):
        held_out_sequences(shard[: 10 * BLOCK], BLOCK, 10)
