"""Batched decoding: every sequence gets what it gets alone, whatever is decoded beside it."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests import reference_engine
from tests.unit.test_engine import (
    CONTEXT_LENGTH,
    MAX_LOOPS,
    PUBLISHED,
    SEED,
    SEVERAL,
    VARIANTS,
    LeaveBySign,
    assert_close,
    make_decoder,
    noise_of,
    ragged_threshold,
    small_model,
    text,
)
from twoscale.errors import InputError
from twoscale.exits import batched_cache
from twoscale.exits.batched import BatchedDecoder, BatchOptions, next_station
from twoscale.exits.criteria import CRITERIA, ExitCriterion, make_criterion
from twoscale.exits.generation import Sampling, generate
from twoscale.exits.looping import Request

LENGTHS = ((1, 9), (3, 12), (6, 7), (2, 4), (1, 12))  # tokens of each prompt, and of each prompt with what follows


class Recorder:
    """Feeds a given text and keeps the logits after every position."""

    def __init__(self, tokens):
        self.tokens, self.logits = tokens, {}

    def choose(self, logits, position):
        self.logits[position - 1] = logits.clone()
        return int(self.tokens[position]) if position < len(self.tokens) else 0


def texts():
    return [text(1, end, seed=number)[0] for number, (_, end) in enumerate(LENGTHS)]


def decode(model, criterion, sequences, **options):
    """The recorders and the evaluations by position of all texts, decoded together."""
    recorders = [Recorder(tokens) for tokens in texts()]
    requests = [
        Request(tokens[:prompt].tolist(), end - prompt + 1, recorder.choose, sequence=number)
        for number, (recorder, tokens, (prompt, end)) in enumerate(zip(recorders, texts(), LENGTHS, strict=True))
    ]
    decoder = BatchedDecoder(model, criterion, MAX_LOOPS, SEED, sequences, BatchOptions(**options))
    evaluations = [{} for _ in LENGTHS]
    for number, token in decoder.decode(requests):
        evaluations[number][LENGTHS[number][0] - 1 + len(evaluations[number])] = token.evaluations
    return recorders, evaluations


def threshold_of(name, model):
    return ragged_threshold(name, model, torch.stack([tokens[:1].repeat(9) for tokens in texts()]), noise_of(*range(5)))


def check(model, criterion, found, expected_of):
    """Compare logits and evaluations with `expected_of(number, tokens)`: logits (T, V) and evaluations (G, T)."""
    for number, (recorder, evaluations) in enumerate(zip(*found, strict=True)):
        logits, counts = expected_of(number, recorder.tokens)
        prompt, end = LENGTHS[number]
        positions = range(prompt - 1, min(end, CONTEXT_LENGTH - 1))
        assert list(evaluations) == list(recorder.logits) == list(positions)
        for position in positions:
            assert_close(recorder.logits[position], logits[position])
            assert evaluations[position] == tuple(counts[:, position].tolist())


CASES = [(variant, name, 3) for variant in ("default", "noise at every step, final norm") for name in CRITERIA]
CASES += [("default", name, sequences) for name in ("kl", "acceleration") for sequences in (1, 2, 5, 8)]
CASES += [(variant, "acceleration", 3) for variant in VARIANTS]
CASES += [(variant, name, 3) for variant in PUBLISHED for name in SEVERAL]


@pytest.mark.parametrize(("variant", "name", "sequences"), dict.fromkeys(CASES))
def test_every_sequence_gets_what_the_reference_engine_gives_it_alone(variant, name, sequences):
    """Ragged texts with more or fewer places than texts, so that they arrive and end while others are decoded."""
    model = small_model(**(VARIANTS | PUBLISHED)[variant])
    threshold = threshold_of(name, model)
    found = decode(model, make_criterion(name, threshold), sequences)

    def alone(number, tokens):
        logits, _, evaluations = reference_engine.evaluate(model, tokens, name, threshold, MAX_LOOPS, noise_of(number))
        return logits, evaluations

    check(model, None, found, alone)
    if name != "fixed":
        assert len({count for counts in found[1] for one in counts.values() for count in one}) > 2
