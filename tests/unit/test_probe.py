"""The probe: its features, its fit, the criterion that reads it, and its file."""

import pytest
import torch

from tests.segment import SEED, Run
from tests.small import checkpoint, held_out, job_config, model_config
from tests.unit.test_engine import MAX_LOOPS, decode_text, make_decoder, noise_of, small_model, text
from twoscale import config, tables
from twoscale.base import InputError
from twoscale.exits import probe
from twoscale.exits.benchmark import measure_exit_quality
from twoscale.exits.parallel import evaluate
from twoscale.exits.probe import (
    Probe,
    criterion_of,
    features,
    fit,
    open_probe,
    save_probe,
    trajectory_samples,
)
from twoscale.exits.references import converged_within
from twoscale.model.checkpoints import CheckpointJob
from twoscale.model.loss import cross_entropies
from twoscale.model.transformer import initialise

TOLERANCE = 1e-3


def probe_config(loops=3, **changes):
    """The slice of the rule train_probe."""
    probe = config.ProbeConfig(**{"tokens": 16, "tolerance": TOLERANCE, "batch_size": 1} | changes)
    return job_config(model=model_config(), probe=probe, max_loops=loops)


def random_text(sequences=2, seed=0):
    size = (sequences, model_config().context_length)
    tokens, targets = torch.randint(37, (2, *size), generator=torch.Generator().manual_seed(seed))
    return held_out(tokens, targets)


def random_probe(groups, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(groups, size + 2, dtype=torch.float64, generator=generator)
    return Probe(weight, torch.zeros(groups, dtype=torch.float64))


def planted(samples, seed=0):
    """Standard normal features (S, 4) and outcomes of a logistic rule of them."""
    generator = torch.Generator().manual_seed(seed)
    seen = torch.randn(samples, 4, dtype=torch.float64, generator=generator)
    weight, bias = torch.tensor([2.0, -1.0, 0.0, 0.5], dtype=torch.float64), 0.3
    chance = torch.rand(samples, dtype=torch.float64, generator=generator)
    return seen, chance < (seen @ weight + bias).sigmoid()


def test_features_are_the_direction_the_relative_step_and_the_number_of_steps():
    x, x_new = torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 4.5]])
    found = features(x, x_new, torch.tensor([4]))
    size = x_new.norm()
    expected = torch.tensor([[3 / size * 2**0.5, 4.5 / size * 2**0.5, 0.1, 5.0]])
    expected[:, 2:] = expected[:, 2:].log()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(features(100 * x, 100 * x_new, torch.tensor([4])), found)  # whatever the scale
    zero, one = torch.zeros(1, 3), torch.ones(1, 3)
    for pair in ((zero, zero), (one, one), (zero, one), (one, zero)):
        assert features(*pair, torch.tensor([0])).isfinite().all()


def test_a_loss_is_converged_from_the_first_count_after_its_last_excess_over_the_tolerance():
    losses = torch.tensor([[2.0, 0.5, 1.15, 9.0], [1.2, 1.0, 0.9, 1.0], [0.9, 1.11, 1.0, 1.2], [1.0, 1.0, 1.0, 1.0]])
    assert converged_within(losses, 0.1).tolist() == [2, 3, 1, 3]
    assert converged_within(losses, 0.25).tolist() == [1, 0, 0, 1]
    assert converged_within(losses, 0.0).tolist() == [2, 3, 1, 3]


def test_the_fit_is_where_the_gradient_of_the_penalised_loss_is_zero():
    """The gradient by hand, in the standardised features; the same bits again."""
    seen, converged = planted(300)
    seen = 3 * seen + torch.tensor([0.0, 5.0, -2.0, 100.0])
    weight, bias = fit(seen, converged, penalty=0.01)
    standardised = (seen - seen.mean(0)) / seen.std(0, correction=0)
    scaled, offset = weight * seen.std(0, correction=0), bias + seen.mean(0) @ weight
    wrong = (standardised @ scaled + offset).sigmoid() - converged.double()
    torch.testing.assert_close(standardised.T @ wrong / 300, -0.01 * scaled, rtol=0, atol=1e-7)
    assert wrong.mean().item() == pytest.approx(-0.01 * offset.item(), abs=1e-7)
    again, _ = fit(seen, converged, penalty=0.01)
    assert torch.equal(again, weight)


@pytest.mark.parametrize("outcome", [True, False])
def test_tokens_that_are_all_settled_or_all_not_give_a_finite_sure_fit(outcome):
    seen, _ = planted(100)
    seen[:, 1] = 7.0  # a constant feature
    weight, bias = fit(seen, torch.full((100,), outcome), penalty=1e-4)
    chance = (seen @ weight + bias).sigmoid()
    assert chance.isfinite().all()
    assert ((chance > 0.95) == outcome).all()
    assert ((chance < 0.05) != outcome).all()


def test_samples_are_the_converged_losses_of_every_loop_step_of_the_plain_pass():
    """The last group is last: its exit at k is the plain pass with k loop steps of it."""
    model, loops, read = initialise(model_config(), 3).double(), 5, random_text()
    loaded = checkpoint(model)
    seen, converged = trajectory_samples(loaded, read, 1, probe_config(loops))
    assert seen.shape == (loops * read.inputs.numel(), model.config.hidden_size + 2)
    losses = torch.stack(
        [cross_entropies(model(read.inputs, [loops, k], loaded.noise([0, 1])), read.targets) for k in range(loops + 1)]
    )
    first = converged_within(losses, TOLERANCE)  # (B, T)
    expected = torch.stack([first <= k + 1 for k in range(loops)])  # (K, B, T)
    assert torch.equal(converged, expected.transpose(0, 1).flatten())  # one sequence at a time
    assert 0 < converged.double().mean() < 1


def ragged(threshold=0.5, seed=1):
    """A criterion with another rule for each of the three groups of `small_model`."""
    return criterion_of(random_probe(3, 16, seed))(threshold)


def test_the_probe_leaves_at_the_same_step_in_parallel_and_in_decoding():
    model, sequences, tokens = small_model(), (4, 1), text(2, 9)
    logits, counts = evaluate(model, tokens, ragged(), MAX_LOOPS, noise_of(*sequences))
    assert len(counts.evaluations.unique()) > 2, "the exits have to be ragged"
    assert not torch.equal(counts.evaluations[0], counts.evaluations[1])
    for row, sequence in enumerate(sequences):
        decoded, taken = decode_text(make_decoder(model, ragged(), sequence=sequence), tokens[row])
        torch.testing.assert_close(decoded, logits[row], rtol=1e-9, atol=1e-9)
        assert torch.equal(taken, counts.evaluations[:, row])


def test_exits_are_the_first_loop_steps_of_a_large_enough_probability():
    """In the first group, where no token sees that others have left: one token a sequence."""
    model, tokens, probe = small_model(), text(20, 1), random_probe(3, 16)
    group = next(part for part in model.trace(tokens, [MAX_LOOPS] * 3, noise_of(*range(20))) if len(part.states) > 1)
    states = torch.stack(group.states)[:, :, 0]  # (K + 1, B, C)
    chances = [
        probe.logits(0, features(states[k], states[k + 1], torch.full((20,), k))).sigmoid() for k in range(MAX_LOOPS)
    ]
    for threshold in (0.3, 0.9):
        fires = torch.stack(chances) >= threshold
        fires[-1] = True  # the last loop step
        _, counts = evaluate(model, tokens, criterion_of(probe)(threshold), MAX_LOOPS, noise_of(*range(20)))
        assert torch.equal(counts.loop_steps[0, :, 0], fires.int().argmax(0) + 1)


def test_a_probe_comes_back_from_its_file_in_the_dtype_of_the_model(tmp_path):
    model, path = initialise(model_config(), 3), tmp_path / "probe.safetensors"
    made = random_probe(2, model.config.hidden_size)
    save_probe(path, made, checkpoint(model, iteration=20), probe_config())
    found = open_probe(path, checkpoint(model, iteration=20))
    assert torch.equal(found.weight, made.weight.float())
    assert torch.equal(found.bias, made.bias.float())
    assert open_probe(None, checkpoint(model)) is None


def test_a_probe_of_another_checkpoint_is_refused(tmp_path):
    model, path = initialise(model_config(), 3), tmp_path / "probe.safetensors"
    save_probe(path, random_probe(2, model.config.hidden_size), checkpoint(model, iteration=20), probe_config())
    with pytest.raises(InputError, match="found a probe of iteration 20, expected 10"):
        open_probe(path, checkpoint(model, iteration=10))
    with pytest.raises(InputError, match="seed is 0 there, expected 1"):
        open_probe(path, checkpoint(model, seed=1, iteration=20))
    with pytest.raises(InputError, match="hidden_size is 8 there, expected 16"):
        open_probe(path, checkpoint(initialise(model_config(hidden_size=16), 3), iteration=20))


def test_the_rules_fit_a_probe_on_training_text_and_measure_its_quality(tmp_path):
    run = Run(tmp_path / "run")
    files = {name: [tmp_path / "run" / f"{name}.bin"] for name in ("train", "val")}
    files |= {"checkpoint": [run.checkpoint(0)], "metadata": [tmp_path / "run" / "tokens.json"]}
    files |= {name: [tmp_path / name] for name in ("probe", "quality", "loops", "cost_matched")}
    fitted = job_config(model=run.model, probe=config.ProbeConfig(tokens=32), sequences=2, max_loops=4, seed=SEED)
    probe.run(CheckpointJob(fitted, files))

    exits = config.ExitsConfig(max_loops=4, criteria={"probe": {"thresholds": [0.01, 0.5, 1.0]}}, quality_tokens=16)
    measured = job_config(model=run.model, exits=exits, sequences=2, criterion_files={}, seed=SEED, run="trial")
    measure_exit_quality(CheckpointJob(measured, files))
    evaluations = tables.read("exit_loops", tmp_path / "loops").groupby("threshold")["evaluations"].mean()
    assert evaluations[0.01] < 4
    assert evaluations[1.0] == 4
    assert evaluations.is_monotonic_increasing
    assert tables.read("exit_quality", tmp_path / "quality")["ce"].notna().all()
