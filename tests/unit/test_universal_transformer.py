"""A Universal Transformer with adaptive computation time: the model, the loss and the exits are a
user's.
"""

import sys

import pytest
import torch

from tests import act, reference_engine, universal_transformer
from tests.small import MODEL, checkpoint, job_config, learnable_tokens, train_config
from tests.tape import TapeGraphs
from tests.unit.test_engine import assert_close, decode_text, text
from twoscale import config
from twoscale.config.types import build
from twoscale.data.batches import held_out_sequences
from twoscale.exits import captured_loops
from twoscale.exits.benchmark import try_criteria
from twoscale.exits.decoder import Decoder, DecoderOptions
from twoscale.exits.parallel import evaluate
from twoscale.model.checkpoints import Header
from twoscale.model.noise import EvaluationNoise
from twoscale.training.state import restore
from twoscale.training.trainer import Trainer, TrainingData, held_out_loss

SEED, MAX_LOOPS, EPSILON = 3, 7, 0.05
CORE = {"groups": [[1, 2, 3, 4]], "state_init": "input", "injection": "none", "exit_gate": True}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(sys.modules, "twoscale.model.universal_transformer", universal_transformer)


def model_config(**changes):
    values = (
        MODEL
        | CORE
        | {"architecture": "universal_transformer", "context_length": 12, "vocab_size": 37}
    )
    return build(universal_transformer.Config, values | changes, "model")


def halting_model():
    """An untrained float64 model whose tokens halt after two to five loop steps."""
    model = universal_transformer.initialise(model_config(), 0).double().requires_grad_(False)
    model.gate.weight *= 4
    model.gate.bias -= 0.8
    return model


def noise_of(*sequences):
    return EvaluationNoise(SEED, sequences, 12)


def test_both_engines_and_plain_adaptive_computation_time_are_the_same_function():
    model, tokens, criterion = halting_model(), text(3, 11), act.ACT(EPSILON)
    logits, counts = evaluate(model, tokens, criterion, MAX_LOOPS, noise_of(0, 1, 2))
    assert len(counts.evaluations.unique()) > 2
    for row in range(3):
        expected, steps, evaluations = reference_engine.evaluate(
            model, tokens[row], "act", EPSILON, MAX_LOOPS, noise_of(row)
        )
        decoder = Decoder(model, criterion, MAX_LOOPS, SEED)
        decoder.reset(sequence=row)
        decoded, taken = decode_text(decoder, tokens[row])
        for found, found_steps in ((logits[row], counts.loop_steps[:, row]), (decoded, taken)):
            assert_close(found, expected)
            assert torch.equal(found_steps, steps)
            assert torch.equal(found_steps, evaluations)
        decoder.rewind(4)
        again, counts_again = decoder.feed_parallel(tokens[row, 4:].tolist())
        assert_close(again, expected[4:])
        assert torch.equal(counts_again.evaluations[:, 0], evaluations[:, 4:])


@pytest.mark.parametrize("max_loops", [1, 2])
def test_the_last_of_all_loop_steps_gets_what_is_left_of_the_weight(max_loops):
    model, tokens = halting_model(), text(1, 9)
    model.gate.bias -= 3
    found, _ = evaluate(model, tokens, act.ACT(1e-9), max_loops, noise_of(0))
    assert_close(found, model(tokens, [max_loops], noise_of(0)))
    assert_close(
        found[0],
        reference_engine.evaluate(model, tokens[0], "act", 1e-9, max_loops, noise_of(0))[0],
    )


def test_graphs_of_several_loop_steps_carry_the_mean_from_one_to_the_next(monkeypatch):
    monkeypatch.setattr(captured_loops, "Graphs", lambda on_cuda: TapeGraphs())
    model, tokens = halting_model(), text(1, 9)[0]
    for size in (1, 2, 10):
        options = DecoderOptions(replay=True, steps_per_graph=size)
        decoded, taken = decode_text(
            Decoder(model, act.ACT(EPSILON), MAX_LOOPS, SEED, options), tokens
        )
        expected, _, evaluations = reference_engine.evaluate(
            model, tokens, "act", EPSILON, MAX_LOOPS, noise_of(0)
        )
        assert_close(decoded, expected)
        assert torch.equal(taken, evaluations)


def test_the_trial_of_criteria_gives_a_criterion_the_gate_that_it_needs():
    model = halting_model()
    criteria = {"act": {"thresholds": [EPSILON], "file": act.__file__, "class": "ACT"}}
    try_criteria(
        checkpoint(model, SEED), text(1, 11)[0], config.ExitsConfig(max_loops=6, criteria=criteria)
    )


def trained(iterations=40, **changes):
    """The Universal Transformer after some iterations, and the rows of its log."""
    model = model_config(context_length=8, **changes)
    segment = job_config(seed=SEED, model=model, train=train_config(lr_decay_iterations=iterations))
    state = restore(segment, universal_transformer.initialise(model, SEED).state_dict(), {}, HEADER)
    trainer = Trainer(segment, DATA)
    for _ in range(iterations):
        trainer.iterate(state)
    return state


HEADER = Header("weights", 0, 0, {}, {})
HELD_OUT = held_out_sequences(learnable_tokens(100)[::-1].copy(), 36, 8, 3)
DATA = TrainingData(learnable_tokens(400), HELD_OUT)


def mean_loops(model):
    _, counts = evaluate(
        model, HELD_OUT.inputs, act.ACT(0.01), 8, EvaluationNoise(SEED, range(3), 8)
    )
    return counts.evaluations.double().mean().item()


def test_its_loss_falls_and_the_price_of_loop_steps_makes_it_halt_earlier():
    cheap, dear = trained(ponder_weight=0.0), trained(ponder_weight=1.0)
    losses = [row["loss"] for row in cheap.log]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert held_out_loss(cheap.model, HELD_OUT, 4, SEED, 2) < losses[0]
    assert (
        dear.log[0]["loss"] - losses[0] > 1.9
    )  # a token takes a loop step at least, and its remainder
    assert mean_loops(dear.model) < mean_loops(cheap.model)
    assert dear.model.gate.bias > cheap.model.gate.bias
