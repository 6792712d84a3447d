"""Batched decoding: every sequence gets what it gets alone, whatever is decoded beside it."""

from functools import lru_cache

import pytest
import torch

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
from twoscale.base import InputError
from twoscale.exits.batched import BatchedDecoder, BatchOptions, Request
from twoscale.exits.criteria import CRITERIA, ExitCriterion, make_criterion
from twoscale.exits.generation import generate
from twoscale.exits.sampling import Sampling

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
    for number, token, _ in decoder.decode(requests):
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


CASES = [("default", name, 3) for name in CRITERIA]
# of criteria whose state has the same layout one is enough
CASES += [("noise at every step, final norm", name, 3) for name in (*SEVERAL, "argmax_stability", "confidence")]
CASES += [("default", name, sequences) for name in ("kl", "acceleration") for sequences in (1, 2, 5, 8)]
CASES += [(variant, "acceleration", 3) for variant in VARIANTS]
CASES += [(variant, name, 3) for variant in PUBLISHED for name in SEVERAL]


@lru_cache
def alone_by_reference(variant, name):
    """A model, a threshold, and what the reference engine gives under it for each text: logits and evaluations."""
    model = small_model(**(VARIANTS | PUBLISHED)[variant])
    threshold = threshold_of(name, model)
    results = [
        reference_engine.evaluate(model, tokens, name, threshold, MAX_LOOPS, noise_of(number))
        for number, tokens in enumerate(texts())
    ]
    return model, threshold, [(logits, evaluations) for logits, _, evaluations in results]


@pytest.mark.parametrize(("variant", "name", "sequences"), dict.fromkeys(CASES))
def test_every_sequence_gets_what_the_reference_engine_gives_it_alone(variant, name, sequences):
    """Ragged texts with more or fewer places than texts, so that they arrive and end while others are decoded."""
    model, threshold, expected = alone_by_reference(variant, name)
    found = decode(model, make_criterion(name, threshold), sequences)
    check(model, None, found, lambda number, tokens: expected[number])
    if name != "fixed":
        assert len({count for counts in found[1] for one in counts.values() for count in one}) > 2


def alone_by_decoder(model, criterion, **options):
    """What the decoder of one sequence gives, token by token behind the prompt."""

    def alone(number, tokens):
        decoder = make_decoder(model, criterion, sequence=number, **options)
        logits, counts = decoder.prefill(tokens[: LENGTHS[number][0]].tolist())
        rest = [decoder.feed(token) for token in tokens[LENGTHS[number][0] :].tolist()]
        evaluations = [counts.evaluations[:, 0].cpu()] + [torch.tensor(taken)[:, None] for _, taken in rest]
        return torch.cat([logits, *(row[None] for row, _ in rest)]), torch.cat(evaluations, dim=1)

    return alone


@pytest.mark.parametrize("variant", ["default", "retrofitted Llama"])
def test_absent_keys_and_values_are_those_of_a_sequence_alone(variant):
    """Also at a place where another text was present at other loop steps."""
    model = small_model(**(VARIANTS | PUBLISHED)[variant])
    model.kv_policy = "absent"
    criterion = make_criterion("acceleration", threshold_of("acceleration", model))
    check(model, criterion, decode(model, criterion, 2), alone_by_decoder(model, criterion))


def test_a_warm_start_is_from_the_own_sequence():
    model = small_model()
    criterion = make_criterion("acceleration", threshold_of("acceleration", model))
    expected = alone_by_decoder(model, criterion, warm_start=True)
    check(model, criterion, decode(model, criterion, 3, warm_start=True), expected)


class Remembering(ExitCriterion):
    """Keeps all states since the beginning, so its state grows with the loop steps; exits where they have spread."""

    def start(self, x0):
        return {"past": x0[:, None]}

    def update(self, state, x_new, readout):
        past = torch.cat((state["past"], x_new[:, None]), dim=1)
        return (past - past.mean(1, keepdim=True)).norm(dim=(1, 2)) > self.threshold, {"past": past}


@pytest.mark.parametrize("criterion", [LeaveBySign(1.0), Remembering(4.5)], ids=["by sign", "growing state"])
def test_criteria_of_the_user_run_as_alone(criterion):
    model = small_model()
    found = decode(model, criterion, 3)
    check(model, criterion, found, alone_by_decoder(model, criterion))
    assert len({count for counts in found[1] for one in counts.values() for count in one}) > 1


class StepsDiffer:
    """A model whose loop steps depend on k; the rest is that of another model."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)

    def recur(self, group, k, state, injected, attend):
        return self._model.recur(group, k, state, injected + 0.1 * k, attend)


def test_a_model_whose_loop_steps_differ_gets_its_own_at_every_k():
    model = StepsDiffer(small_model())
    criterion = make_criterion("acceleration", threshold_of("acceleration", model))
    check(model, criterion, decode(model, criterion, 4), alone_by_decoder(model, criterion))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sampled_text_is_that_of_generating_alone_under_the_same_seed(temperature):
    model = small_model()
    criterion = make_criterion("acceleration", threshold_of("acceleration", model))
    prompts, end_of_text = [[1], [2, 3, 4], [5, 6], [7, 8, 9, 1]], 5
    samplings = [Sampling(temperature, seed=seed) for seed in range(len(prompts))]
    requests = [Request(p, 6, s.choose, end_of_text) for p, s in zip(prompts, samplings, strict=True)]
    found = [[] for _ in prompts]
    for number, token, _ in BatchedDecoder(model, criterion, MAX_LOOPS, SEED, 2).decode(requests):
        found[number].append(token)
    for tokens, prompt, sampling in zip(found, prompts, samplings, strict=True):
        decoder = make_decoder(model, criterion)
        assert tokens == list(generate(decoder, prompt, 6, sampling, end_of_text))


def test_keys_and_values_are_allocated_once():
    model = small_model()
    decoder = BatchedDecoder(model, make_criterion("acceleration", 0.1), MAX_LOOPS, SEED, 2)

    def addresses():
        tensors = [*decoder.stored.values(), decoder._exit_states]
        return [tensor.data_ptr() for tensor in tensors]

    requests = [Request([number], 5, Sampling().choose, sequence=number) for number in range(6)]
    list(decoder.decode(requests[:3]))
    before = addresses()
    list(decoder.decode(requests))
    assert addresses() == before


def test_a_place_is_refilled_as_soon_as_its_sequence_ends():
    """A request is taken from the iterator only when a place is free for it."""
    model, taken = small_model(), []

    def arriving():
        for number in range(4):
            taken.append(number)
            yield Request([number], 3, Sampling().choose)

    ended = []
    for number, _, is_last in BatchedDecoder(model, make_criterion("fixed", 2), MAX_LOOPS, SEED, 2).decode(arriving()):
        ended += [number] if is_last else []
        assert len(taken) <= 2 + len(ended)
    assert sorted(ended) == [0, 1, 2, 3]


def refused(message, requests=(), criterion="acceleration", sequences=2, **options):
    def run():
        made = make_criterion(criterion, 1.0)
        decoder = BatchedDecoder(small_model(), made, MAX_LOOPS, SEED, sequences, BatchOptions(**options))
        list(decoder.decode(requests))

    with pytest.raises(InputError, match=message):
        run()


def test_wrong_input_is_one_sentence():
    choose = Sampling().choose
    refused("prompt 1: found no token, expected at least one", [Request([1], 2, choose), Request([], 2, choose)])
    refused("prompt 0: found 12 tokens, expected at most 11", [Request([1] * CONTEXT_LENGTH, 2, choose)])
    refused("prompt 0: found max_new_tokens = 0", [Request([1], 0, choose)])
    refused("sequences: found 0, expected at least 1", sequences=0)
    refused("found remaining_layers, expected head", criterion="kl", readout="remaining_layers")
