"""Training batches: order, epochs, targets and held-out sequences."""

import gc
import json
import weakref
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.small import model_config, shard_part
from twoscale.base import InputError
from twoscale.data.batches import Batches, Prefetched, held_out_sequences, open_held_out

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


def test_the_next_batch_is_read_once_while_the_current_one_is_computed():
    class Recorder:
        def __init__(self):
            self.read = []

        def __getitem__(self, iteration):
            self.read.append(iteration)
            return iteration

    recorder = Recorder()
    prefetched = Prefetched(recorder)
    assert [prefetched[iteration] for iteration in (3, 4, 5, 9, 10)] == [3, 4, 5, 9, 10]
    prefetched._reader.shutdown()
    assert recorder.read == [3, 4, 5, 6, 9, 10, 11]


def test_batches_that_were_used_are_not_kept(shard):
    prefetched = Prefetched(Batches(shard, CONTEXT, 3, "offsets", seed=1))
    used = [weakref.ref(prefetched[iteration][0]) for iteration in (0, 1, 2, 7, 8, 9)]
    prefetched._reader.shutdown()
    gc.collect()
    assert not any(tensor() is not None for tensor in used[:-1])


def test_a_batch_may_be_larger_than_an_epoch(shard):
    batches = Batches(shard, CONTEXT, 25, "permutation", seed=1)
    first, second = batches.indices(0), batches.indices(1)
    assert len(first) == len(second) == 25
    assert sorted(np.concatenate([first, second])) == sorted(
        5 * [CONTEXT * number for number in range(10)]
    )


def test_offsets_reach_every_start_that_has_a_target_and_no_other(shard):
    seen = set(starts(Batches(shard, CONTEXT, 50, "offsets", seed=1), range(40)).tolist())
    assert seen == set(range(len(shard) - CONTEXT))


@pytest.mark.parametrize("length", [0, 1, CONTEXT])
def test_less_than_one_sequence_and_a_target_is_refused(shard, length):
    with pytest.raises(InputError, match=f"found {length}, expected at least {CONTEXT + 1}"):
        Batches(shard[:length], CONTEXT, 2, "permutation", seed=1)


END = 4  # id of the end of text


def numbered(blocks, rest=4):
    """A shard of `blocks` sequences and `rest` more tokens, in which every token equals its
    position.
    """
    return np.arange(blocks * CONTEXT + rest, dtype="<u2")


def test_held_out_sequences_are_blocks_of_the_shard_and_the_tokens_after_them():
    held_out = held_out_sequences(numbered(10), END, CONTEXT, 7)
    assert (
        held_out.inputs.shape == held_out.targets.shape == (len(held_out), CONTEXT) == (7, CONTEXT)
    )
    starts = torch.tensor(held_out.sequences) * CONTEXT
    assert torch.equal(held_out.inputs, starts[:, None] + torch.arange(CONTEXT))
    assert torch.equal(held_out.targets, held_out.inputs + 1)
    rows = list(held_out.rows(ce=[0.5] * 7))
    assert [(row["sequence"], row["tokens"], row["ce"]) for row in rows] == [
        (sequence, CONTEXT, 0.5) for sequence in held_out.sequences
    ]


@pytest.mark.parametrize("blocks", [10, 33, 64, 100])
def test_fewer_sequences_are_among_those_of_a_larger_count(blocks):
    held_out = [
        held_out_sequences(numbered(blocks), END, CONTEXT, count) for count in range(1, blocks + 1)
    ]
    for small, large in pairwise(held_out):
        assert set(small.sequences) < set(large.sequences)
        assert list(large.sequences) == sorted(large.sequences)


@pytest.mark.parametrize("blocks", [33, 64, 100, 127, 1000])
@pytest.mark.parametrize("count", [4, 8, 16, 31])
def test_sequences_are_spread_over_the_whole_shard(blocks, count):
    numbers = np.array(
        [0, *held_out_sequences(numbered(blocks), END, CONTEXT, count).sequences, blocks]
    )
    # the longest stretch without a sequence is at most twice the even one
    assert np.diff(numbers).max() <= 2 * blocks / count


def test_the_document_of_a_sequence_is_that_of_its_first_token():
    ends = [3, 8, 9, 15, 31]  # the end of document 1 is itself the first token of sequence 1
    shard = np.zeros(5 * CONTEXT + 1, dtype="<u2")
    shard[ends] = END
    assert held_out_sequences(shard, END, CONTEXT, 5).documents == (0, 1, 4, 4, 5)


def test_the_end_of_text_is_read_from_the_metadata(tmp_path):
    shard = numbered(10)
    shard.tofile(tmp_path / "val.bin")
    metadata = {
        "dtype": "uint16",
        "end_of_text": 40,
        "digest": "",
        "parts": {"val.bin": shard_part(shard)},
    }
    (tmp_path / "tokens.json").write_text(json.dumps(metadata))
    held_out = open_held_out(
        tmp_path / "val.bin", tmp_path / "tokens.json", model_config(vocab_size=100), 10
    )
    assert held_out.documents == (0,) * 6 + (1,) * 4
    assert held_out.keys[6:8] == [{"sequence": 6, "document": 1}, {"sequence": 7, "document": 1}]


def test_the_last_token_of_the_last_sequence_needs_a_target():
    with pytest.raises(InputError, match="9 sequences"):
        held_out_sequences(numbered(10, rest=0), END, CONTEXT, 10)
    assert (
        held_out_sequences(numbered(10, rest=1), END, CONTEXT, 10).targets[-1, -1] == 10 * CONTEXT
    )
