"""One exit criterion per looped group: both engines apply it to its group, and equal ones are the plain criterion."""

import pytest
import torch

from tests.unit.test_engine import MAX_LOOPS, SEED, noise_of, small_model, text
from twoscale.exits.contract import is_sequential
from twoscale.exits.criteria import make_criterion
from twoscale.exits.decoder import Decoder, DecoderOptions
from twoscale.exits.parallel import evaluate
from twoscale.studies.calibration.per_group import PerGroup, make_per_group

# Thresholds of three groups at which tokens of the small model take from two to all loop steps.
DIFFERENT = {
    "fixed": (2, 5, 3),
    "step_norm": (2.0, 0.02, 0.5),
    "acceleration": (0.05, 2.0, 0.5),
    "kl": (1e-2, 1e-6, 1e-4),
    "argmax_stability": (1, 4, 2),
    "exit_gate": (0.3, 0.9, 0.6),
}


def read(model, criterion, tokens):
    """Logits and evaluations (G, B, T) of a text that is read in parallel."""
    logits, counts = evaluate(model, tokens, criterion, MAX_LOOPS, noise_of(*range(len(tokens))))
    return logits, counts.evaluations


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_text_in_parallel_and_token_by_token_has_the_exits_of_each_group(name):
    model, tokens = small_model(), text(1, 10)
    criterion = make_per_group(name, DIFFERENT[name])
    logits, evaluations = read(model, criterion, tokens)
    decoder = Decoder(model, criterion, MAX_LOOPS, SEED, DecoderOptions(replay=False))
    decoded, counts = zip(*map(decoder.feed, tokens[0].tolist()), strict=True)
    assert evaluations[:, 0].T.tolist() == [list(of_token) for of_token in counts]
    torch.testing.assert_close(logits[0], torch.stack(decoded), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", DIFFERENT)
def test_equal_thresholds_are_the_plain_criterion(name):
    model, tokens = small_model(), text(2, 8)
    for threshold in DIFFERENT[name]:
        plain = read(model, make_criterion(name, threshold), tokens)
        found = read(model, make_per_group(name, (threshold,) * 3), tokens)
        assert all(map(torch.equal, found, plain))


def test_the_first_group_exits_as_under_its_own_threshold_whatever_the_later_ones_have():
    model, tokens = small_model(), text(2, 8)
    first, later = DIFFERENT["step_norm"][:2]
    _, different = read(model, make_per_group("step_norm", (first, later, later)), tokens)
    _, of_first = read(model, make_criterion("step_norm", first), tokens)
    _, of_later = read(model, make_criterion("step_norm", later), tokens)
    assert torch.equal(different[0], of_first[0])
    assert not torch.equal(of_first[0], of_later[0]), "the thresholds have to differ in their exits"
    assert different[1:].sum() > of_first[1:].sum()


def test_criteria_of_different_classes_keep_their_state_and_patience():
    """Acceleration keeps the state before the last step and waits for two steps, the fixed count neither."""
    model, tokens = small_model(), text(1, 8)
    mixed = PerGroup([make_criterion("acceleration", 1e9), make_criterion("fixed", 4), make_criterion("fixed", 1)])
    _, counts = evaluate(model, tokens, mixed, MAX_LOOPS, noise_of(0))
    assert [set(group.flatten().tolist()) for group in counts.evaluations] == [{3}, {4}, {1}]
    assert [set(group.flatten().tolist()) for group in counts.loop_steps] == [{2}, {4}, {1}]


def test_one_group_that_reads_predictions_makes_a_text_sequential():
    silent = [make_criterion("fixed", 2), make_criterion("step_norm", 1.0)]
    assert not is_sequential(PerGroup(silent), "remaining_layers")
    assert is_sequential(PerGroup([*silent, make_criterion("kl", 1.0)]), "remaining_layers")
