"""Training of the exit gate: the exit distribution, the loss of Ouro's first stage, and what the
gate learns.
"""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.small import model_config, saved_bytes, train_config
from twoscale import config
from twoscale.exits.criteria import make_criterion
from twoscale.model import flops
from twoscale.model.loss import exit_log_probabilities
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import initialise
from twoscale.training.state import set_trained
from twoscale.training.trainer import exit_gate_loss
from twoscale.workflow.memory import activation_bytes

LOOPS = 4
BATCH = 2
OURO = {
    "groups": [[1, 2, 3, 4]],
    "state_init": "input",
    "injection": "none",
    "loop_norm": True,
    "sandwich": "branch",
    "tied_head": False,
}
CODA = {"groups": [[2, 3]], "exit_norm": "final_norm"}


def gated(entropy_weight=0.1, double=True, **changes):
    """A model with an exit gate of large weights, and the training config that trains it."""
    train = train_config(exit_gate={"entropy_weight": entropy_weight})
    model = set_trained(initialise(model_config(exit_gate=True, **CODA | changes), 3), train)
    with torch.no_grad():
        model.gate.weight *= 3
    return (model.double() if double else model), train


def batch(model, seed=0):
    """Token ids and targets (B, T), and the noise."""
    size = (BATCH, model.config.context_length)
    generator = torch.Generator().manual_seed(seed)
    tokens, targets = (
        torch.randint(model.config.vocab_size, size, generator=generator) for _ in range(2)
    )
    return tokens, targets, EvaluationNoise(1, range(BATCH), model.config.context_length)


def loss_of(model, train, tokens, targets, noise):
    return exit_gate_loss(model, tokens, targets, LOOPS, noise, train)


def test_the_exit_distribution_is_that_of_the_products():
    logits = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = exit_log_probabilities(logits).exp()
    gates = logits.sigmoid().tolist()
    for token in range(3):
        stays = 1.0
        for k in range(4):
            assert found[k, token].item() == pytest.approx(stays * gates[k][token])
            stays *= 1 - gates[k][token]
        assert found[4, token].item() == pytest.approx(stays)
    torch.testing.assert_close(found.sum(0), torch.ones(3, dtype=torch.float64))
    assert exit_log_probabilities(logits[:1]).tolist() == [
        [0, 0, 0]
    ]  # one loop step has all of the probability
    cumulated = found.cumsum(0)[:-1, 0]
    for k in range(4):  # the criterion compares this sum
        criterion = make_criterion("exit_gate", cumulated[k].item() * (1 + 1e-9))
        state = criterion.start(torch.zeros(1, 2, dtype=torch.float64))
        exits = []
        for logit in logits[:-1, :1]:
            left, state = criterion.update(
                state, torch.zeros(1, 2), lambda x, logit=logit: logit.sigmoid()
            )
            exits.append(left.item())
        assert exits == [step > k for step in range(len(exits))]


@pytest.mark.parametrize(("logit", "leaves_at"), [(1e3, 0), (-1e3, 3)])
def test_a_gate_that_is_open_or_shut_leaves_at_the_first_or_the_last_step(logit, leaves_at):
    logits = torch.full((4, 2), logit, requires_grad=True)
    log_p = exit_log_probabilities(logits)
    p = log_p.exp()
    assert p[leaves_at].tolist() == [1, 1]
    assert p.sum().item() == 2
    entropy = -(p * log_p).sum()
    entropy.backward()
    assert entropy.item() == 0
    assert logits.grad.isfinite().all()


def reference(model, tokens, targets, noise, entropy_weight):
    """The loss in plain loops over exits and tokens."""
    rows = []
    for k in range(LOOPS):
        hidden = model.hidden_states(tokens, [k + 1], noise)
        rows.append(
            F.cross_entropy(
                model.readout(hidden).flatten(0, 1), targets.flatten(), reduction="none"
            )
        )
    gates = model.exit_gate(model.exit_states(tokens, LOOPS, noise)[0]).flatten(1)
    total = 0.0
    for token in range(targets.numel()):
        stays = 1.0
        for k in range(LOOPS):
            p = stays if k == LOOPS - 1 else stays * gates[k, token]
            total = total + p * rows[k][token] + entropy_weight * p * torch.log(p)
            stays = stays * (1 - gates[k, token])
    return total / targets.numel()


@pytest.mark.parametrize("entropy_weight", [0.0, 0.7])
@pytest.mark.parametrize("changes", [{}, OURO], ids=["layers behind the group", "Ouro"])
def test_loss_and_gradients_are_those_of_plain_loops(changes, entropy_weight):
    model, train = gated(entropy_weight, **changes)
    tokens, targets, noise = batch(model)
    found, expected = (
        loss_of(model, train, tokens, targets, noise),
        reference(model, tokens, targets, noise, entropy_weight),
    )
    torch.testing.assert_close(found, expected)
    parameters = dict(model.named_parameters())
    gradients = zip(
        *(torch.autograd.grad(value, parameters.values()) for value in (found, expected)),
        strict=True,
    )
    for name, (ours, theirs) in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-8, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}"
        )
        assert ours.abs().max() > 0


@pytest.mark.parametrize("changes", [{}, OURO], ids=["layers behind the group", "Ouro"])
def test_the_flops_that_the_gate_adds_are_those_that_torch_counts(changes):
    model, train = gated(double=False, **changes)
    tokens, targets, noise = batch(model)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss_of(model, train, tokens, targets, noise).backward()
    plain = flops.flops_per_token(model.config, [LOOPS], causal=False)
    found = plain + flops.exit_gate_flops(model.config, LOOPS, causal=False)
    assert found.total == counter.get_total_flops() / tokens.numel()
    assert found.backward - plain.backward == 2 * (found.forward - plain.forward)


def test_the_activations_are_those_that_autograd_keeps_for_one_more_loop_step():
    found = cache_bytes(LOOPS + 1) - cache_bytes(LOOPS)
    model, train = gated(hidden_size=256, context_length=32)
    (run,) = config.runs({"preset": "tiny"}).values()
    run, more = (
        run.model_copy(
            update={"train": train, "model": model.config.model_copy(update={"mean_loops": loops})}
        )
        for loops in (3, 4)
    )
    assert activation_bytes(more) - activation_bytes(run) == pytest.approx(found, rel=0.05)


def cache_bytes(loops):
    """Bytes that the loss of one sequence keeps for the backward pass, besides the parameters and
    their gradients.
    """
    model, train = gated(double=False, hidden_size=256, context_length=32)
    tokens = torch.arange(model.config.context_length)[None] % model.config.vocab_size
    noise = EvaluationNoise(1, [0], tokens.shape[1])
    return saved_bytes(model, lambda: exit_gate_loss(model, tokens, tokens, loops, noise, train))
