"""Training batches: order, epochs, targets and held-out sequences."""

import numpy as np
import pytest
import torch

from twoscale.data.batches import Batches, Prefetched, held_out_sequences
from twoscale.errors import InputError

CONTEXT = 8


@pytest.fixture
def shard(tmp_path):
    """A memory map of ten sequences and 4 more tokens, in which every token equals its position."""
    path = tmp_path / "train.bin"
    np.arange(10 * CONTEXT + 4, dtype="<u2").tofile(path)
    return np.memmap(path, dtype="<u2", mode="r")


def starts(batches, iterations):
    return np.concatenate([batches.indices(iteration) for iteration in iterations])


@pytest.mark.parametrize("order", ["permutation", "offsets"])
def test_a_batch_is_tokens_and_the_tokens_after_them(shard, order):
    batches = Batches(shard, CONTEXT, 3, order, seed=1)
    inputs, targets = batches[5]
    assert inputs.shape == targets.shape == (3, CONTEXT)
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.is_contiguous()
    assert targets.is_contiguous()
    expected = torch.from_numpy(batches.indices(5))[:, None] + torch.arange(CONTEXT)
    assert torch.equal(inputs, expected)
    assert torch.equal(targets, expected + 1)


@pytest.mark.parametrize("order", ["permutation", "offsets"])
def test_a_batch_is_a_function_of_seed_and_iteration(shard, order):
    in_order = Batches(shard, CONTEXT, 3, order, seed=1)
    forwards = [in_order[iteration][0] for iteration in range(12)]
    shuffled = Batches(shard, CONTEXT, 3, order, seed=1)
    for iteration in (11, 0, 7, 3, 3, 10):
        assert torch.equal(shuffled[iteration][0], forwards[iteration])
    other = Batches(shard, CONTEXT, 3, order, seed=2)
    assert any(not torch.equal(other[iteration][0], forwards[iteration]) for iteration in range(12))


@pytest.mark.parametrize("order", ["permutation", "offsets"])
def test_prefetching_yields_the_same_batches_in_any_order(shard, order):
    direct = Batches(shard, CONTEXT, 3, order, seed=1)
    prefetched = Prefetched(Batches(shard, CONTEXT, 3, order, seed=1))
    for iteration in (0, 1, 2, 3, 7, 8, 2, 2, 11):  # consecutive, across epochs, and with jumps
        for tensor, expected in zip(prefetched[iteration], direct[iteration], strict=True):
            assert torch.equal(tensor, expected)


def test_permutation_visits_every_sequence_once_per_epoch(shard):
    batches = Batches(shard, CONTEXT, 5, "permutation", seed=1)
    for epoch in range(4):
        seen = starts(batches, (2 * epoch, 2 * epoch + 1))
        assert sorted(seen) == [CONTEXT * number for number in range(10)]


def test_each_epoch_has_another_order(shard):
    batches = Batches(shard, CONTEXT, 10, "permutation", seed=1)
    orders = {tuple(batches.indices(epoch)) for epoch in range(5)}
    assert len(orders) == 5


def test_a_batch_may_span_two_epochs(shard):
    batches = Batches(shard, CONTEXT, 4, "permutation", seed=1)  # the third batch has 2 sequences of each epoch
    row = starts(batches, range(5))
    assert sorted(row[:10]) == sorted(row[10:]) == [CONTEXT * number for number in range(10)]


def test_a_batch_may_be_larger_than_an_epoch(shard):
    batches = Batches(shard, CONTEXT, 25, "permutation", seed=1)
    first, second = batches.indices(0), batches.indices(1)
    assert len(first) == len(second) == 25
    assert sorted(np.concatenate([first, second])) == sorted(5 * [CONTEXT * number for number in range(10)])


def test_the_order_of_sequences_does_not_depend_on_the_batch_size(shard):
    small = starts(Batches(shard, CONTEXT, 2, "permutation", seed=1), range(15))
    large = starts(Batches(shard, CONTEXT, 6, "permutation", seed=1), range(5))
    np.testing.assert_array_equal(small, large)


def test_offsets_reach_every_start_that_has_a_target_and_no_other(shard):
    seen = set(starts(Batches(shard, CONTEXT, 50, "offsets", seed=1), range(40)).tolist())
    assert seen == set(range(len(shard) - CONTEXT))


@pytest.mark.parametrize("order", ["permutation", "offsets"])
def test_one_sequence_and_a_target_are_enough(shard, order):
    inputs, targets = Batches(shard[: CONTEXT + 1], CONTEXT, 2, order, seed=1)[3]
    assert inputs.tolist() == [list(range(CONTEXT))] * 2
    assert targets.tolist() == [list(range(1, CONTEXT + 1))] * 2


@pytest.mark.parametrize("length", [0, 1, CONTEXT])
def test_less_than_one_sequence_and_a_target_is_refused(shard, length):
    with pytest.raises(InputError, match=f"found {length}, expected at least {CONTEXT + 1}"):
        Batches(shard[:length], CONTEXT, 2, "permutation", seed=1)


def test_unknown_order_is_refused(shard):
    with pytest.raises(InputError, match=r"train\.order: found 'sorted', expected one of permutation, offsets"):
        Batches(shard, CONTEXT, 2, "sorted", seed=1)


def test_ids_of_the_upper_half_of_uint16_stay_positive():
    shard = np.full(CONTEXT + 1, 65535, dtype="<u2")
    assert Batches(shard, CONTEXT, 1, "permutation", seed=1)[0][0].unique().tolist() == [65535]


def test_batches_are_copies_of_the_shard(shard):
    before = shard.copy()
    inputs, _ = Batches(shard, CONTEXT, 3, "permutation", seed=1)[0]
    inputs.zero_()
    np.testing.assert_array_equal(shard, before)


def test_held_out_sequences_are_the_first_ones_in_order(shard):
    inputs, targets = held_out_sequences(shard, CONTEXT, 10)
    assert inputs.shape == targets.shape == (10, CONTEXT)
    assert inputs.flatten().tolist() == list(range(10 * CONTEXT))
    assert targets.flatten().tolist() == list(range(1, 10 * CONTEXT + 1))
    assert torch.equal(held_out_sequences(shard, CONTEXT, 4)[0], inputs[:4])


def test_too_many_held_out_sequences_are_refused(shard):
    with pytest.raises(InputError, match=r"found 84, 10 sequences .* expected 11 sequences"):
        held_out_sequences(shard, CONTEXT, 11)


def test_the_last_token_of_the_last_sequence_needs_a_target(shard):
    with pytest.raises(InputError, match="9 sequences"):
        held_out_sequences(shard[: 10 * CONTEXT], CONTEXT, 10)
