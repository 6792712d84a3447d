"""Generation: sampling by position, where a text ends, and self-speculative decoding, which changes no token."""

import random

import pytest
import torch

from tests.unit.test_engine import (
    CONTEXT_LENGTH,
    MAX_LOOPS,
    SEED,
    noise_of,
    ragged_threshold,
    random_model,
    small_model,
    text,
)
from twoscale.base import InputError
from twoscale.exits.criteria import CRITERIA, make_criterion
from twoscale.exits.decoder import Decoder, DecoderOptions
from twoscale.exits.generate import Sampling, Speculation, generate
from twoscale.exits.parallel import evaluate

PROMPT = [3, 1, 4]
GREEDY = Sampling()
RANDOM = Sampling(temperature=1.0, seed=5)
LOGITS = torch.tensor([2.0, 0.5, 1.0, -1.0, 1.5])


def decoder_of(model, name="fixed", threshold=3, **options):
    return Decoder(model, make_criterion(name, threshold), MAX_LOOPS, SEED, DecoderOptions(**options))


def ids(new_tokens):
    return [token.id for token in new_tokens]


def frequencies(sampling, draws=20_000):
    chosen = [sampling.choose(LOGITS, position) for position in range(draws)]
    return torch.bincount(torch.tensor(chosen), minlength=len(LOGITS)) / draws


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampling_follows_the_probabilities_at_a_temperature(temperature):
    expected = (LOGITS / temperature).softmax(0)
    assert frequencies(Sampling(temperature, seed=1)) == pytest.approx(expected, abs=0.015)  # 4 standard errors


def test_top_k_keeps_the_most_likely_tokens_and_their_proportions():
    expected = torch.zeros(5)
    expected[[0, 4]] = LOGITS[[0, 4]].softmax(0)
    assert frequencies(Sampling(1.0, top_k=2)) == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize(
    ("top_p", "kept"), [(1e-9, [0]), (0.4, [0]), (0.5, [0, 4]), (0.8, [0, 2, 4]), (1.0, [0, 1, 2, 3, 4])]
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p, kept):
    """The probabilities are 0.44, 0.10, 0.16, 0.02 and 0.27."""
    expected = torch.zeros(5)
    expected[kept] = LOGITS[kept].softmax(0)
    assert frequencies(Sampling(1.0, top_p=top_p)) == pytest.approx(expected, abs=0.015)


def test_top_p_is_a_share_of_what_top_k_keeps():
    """The first of the two most likely tokens has the probability 0.62."""
    assert frequencies(Sampling(1.0, top_k=2, top_p=0.6), 2000).tolist() == [1, 0, 0, 0, 0]
    assert (frequencies(Sampling(1.0, top_k=2, top_p=0.7), 2000) > 0).tolist() == [True, False, False, False, True]


def test_a_sample_is_a_function_of_seed_and_position():
    first = [RANDOM.choose(LOGITS, position) for position in range(50)]
    assert first == [RANDOM.choose(LOGITS, position) for position in reversed(range(50))][::-1]
    assert first != [Sampling(1.0, seed=6).choose(LOGITS, position) for position in range(50)]


def test_temperature_zero_and_top_k_one_are_greedy():
    assert GREEDY.choose(LOGITS, 0) == 0
    assert frequencies(Sampling(5.0, top_k=1), 100)[0] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature: found -1.0"),
        ({"temperature": float("nan")}, "temperature: found nan"),
        ({"temperature": float("inf")}, "temperature: found inf"),
        ({"top_k": 0}, "top_k: found 0"),
        ({"top_p": 0.0}, "top_p: found 0.0"),
        ({"top_p": 1.5}, "top_p: found 1.5"),
        ({"top_p": float("nan")}, "top_p: found nan"),
    ],
)
def test_invalid_sampling_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        Sampling(**options)


@pytest.mark.parametrize("name", CRITERIA)
def test_greedy_text_is_the_most_likely_token_after_each_prefix(name):
    model = small_model()
    threshold = ragged_threshold(name, model, text(1, 9), noise_of(0))
    criterion = make_criterion(name, threshold)
    new = list(generate(decoder_of(model, name, threshold), PROMPT, 6, GREEDY))
    whole = torch.tensor([PROMPT + ids(new)])
    logits, counts = evaluate(model, whole, criterion, MAX_LOOPS, noise_of(0))
    assert ids(new) == logits[0, len(PROMPT) - 1 : -1].argmax(-1).tolist()
    evaluations = counts.evaluations[:, 0, len(PROMPT) - 1 : -1].T.tolist()
    assert [list(token.evaluations) for token in new] == evaluations


@pytest.mark.parametrize("options", [{}, {"kv_slots": 2}])
def test_a_text_can_be_continued_from_its_first_tokens(options):
    """A sample depends on the position, and the cache only on the text."""
    decoder = decoder_of(small_model(), **options)
    whole = ids(generate(decoder, PROMPT, 8, RANDOM))
    start = ids(generate(decoder, PROMPT, 3, RANDOM))
    assert start + ids(generate(decoder, PROMPT + start, 5, RANDOM)) == whole
    assert len(set(whole)) > 1


def test_a_text_ends_with_the_end_of_text():
    model = small_model()
    free = ids(generate(decoder_of(model), PROMPT, 9, RANDOM))
    end = free[4]
    assert ids(generate(decoder_of(model), PROMPT, 9, RANDOM, end)) == free[: free.index(end) + 1]
    speculation = Speculation(make_criterion("fixed", 3), 3)
    assert ids(generate(decoder_of(model), PROMPT, 9, RANDOM, end, speculation)) == free[: free.index(end) + 1]


@pytest.mark.parametrize("length", [1, CONTEXT_LENGTH - 1])
@pytest.mark.parametrize("drafts", [0, 1, 50])
def test_a_text_ends_where_it_fills_the_context(length, drafts):
    speculation = Speculation(make_criterion("fixed", 2), drafts) if drafts else None
    new = ids(generate(decoder_of(small_model()), [0] * length, 100, GREEDY, speculation=speculation))
    assert len(new) == CONTEXT_LENGTH - length


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "found no token"),
        ([0] * CONTEXT_LENGTH, f"found {CONTEXT_LENGTH} tokens, expected at most {CONTEXT_LENGTH - 1}"),
    ],
)
def test_an_empty_prompt_or_one_that_fills_the_context_is_refused_before_the_first_token(prompt, message):
    with pytest.raises(InputError, match=f"prompt: {message}"):
        generate(decoder_of(small_model()), prompt, 5, GREEDY)


@pytest.mark.parametrize("case", range(16))
def test_drafts_change_no_token_and_no_count(case):
    draw = random.Random(case)
    model = random_model(draw)
    name, sampling = draw.choice(list(CRITERIA)), draw.choice([GREEDY, RANDOM])
    threshold = ragged_threshold(name, model, text(1, CONTEXT_LENGTH), noise_of(0), share=0.3)
    prompt = text(1, draw.randint(1, 4), case)[0].tolist()
    max_new_tokens = draw.randint(1, CONTEXT_LENGTH)

    def new_tokens(speculation=None):
        decoder = decoder_of(model, name, threshold)
        return list(generate(decoder, prompt, max_new_tokens, sampling, speculation=speculation))

    without_drafts = new_tokens()
    draft_criterion = draw.choice([("fixed", draw.randint(1, MAX_LOOPS)), ("step_norm", 10 ** draw.uniform(-2, 1))])
    assert new_tokens(Speculation(make_criterion(*draft_criterion), draw.randint(1, 6))) == without_drafts


def test_some_drafts_are_accepted_and_some_are_not():
    """The test above covers both cases."""
    model = small_model()
    shares = []
    for loops in (1, MAX_LOOPS - 1, MAX_LOOPS):
        speculation = Speculation(make_criterion("fixed", loops), 3)
        list(generate(decoder_of(model, "fixed", MAX_LOOPS), [2], CONTEXT_LENGTH - 1, RANDOM, speculation=speculation))
        shares.append(speculation.acceptance)
    assert shares[0] < 1
    assert shares[1] > 0
    assert shares[2] == 1


def test_drafts_under_the_criterion_of_the_decoder_are_all_accepted():
    speculation = Speculation(make_criterion("fixed", 3), 3)
    new = list(generate(decoder_of(small_model()), [2], 9, GREEDY, speculation=speculation))
    # one token from the prompt, then 3 drafts and one more per pass
    assert len(new) == 9
    assert (speculation.passes, speculation.drafted, speculation.accepted) == (2, 6, 6)


def test_drafting_restores_the_criterion_and_the_position_of_the_decoder():
    decoder = decoder_of(small_model())
    criterion = decoder.criterion
    decoder.prefill(PROMPT)
    new = Speculation(make_criterion("fixed", 1), 4).next_tokens(decoder, 5, 5, GREEDY)
    assert decoder.criterion is criterion
    assert decoder.position == len(PROMPT) + len(new)


@pytest.mark.parametrize(
    ("options", "message"), [({"warm_start": True}, "warm_start:"), ({"kv_slots": 2}, "kv_slots: found 2,")]
)
def test_drafts_are_refused_where_positions_cannot_be_computed_in_parallel(options, message):
    speculation = Speculation(make_criterion("fixed", 1), 3)
    with pytest.raises(InputError, match=f"{message}.* cannot be combined with drafts"):
        generate(decoder_of(small_model(), **options), PROMPT, 3, GREEDY, speculation=speculation)
    with pytest.raises(InputError, match="drafts: found 0"):
        Speculation(make_criterion("fixed", 1), 0)
