"""linear_cross_entropy: the loss and gradients of whole logits, without holding them. Entropies and ranks."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.small import model_config
from twoscale.model import loss
from twoscale.model.kernels import MULTIPLE
from twoscale.model.loss import cross_entropies, entropies, linear_cross_entropy, ranks
from twoscale.model.transformer import initialise

VOCAB_SIZE, PADDED, CHANNELS = 37, 64, 8


def operands(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, CHANNELS, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(PADDED, CHANNELS, dtype=torch.float64, generator=generator, requires_grad=True)
    return hidden, weight, torch.randint(VOCAB_SIZE, (tokens,), generator=generator)


@pytest.mark.parametrize("with_shares", [False, True])
@pytest.mark.parametrize("tokens", [1, MULTIPLE, 2 * MULTIPLE + 5])
def test_loss_and_gradients_are_those_of_whole_logits(tokens, with_shares, monkeypatch):
    """Shares weigh the loss of each token, and have a gradient, too. Rows that pad the vocabulary have none."""
    monkeypatch.setitem(loss.CHUNK_LOGITS, "cpu", 1)  # the smallest chunks
    hidden, weight, targets = operands(tokens)
    shares = torch.rand(tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    ours = 3 * linear_cross_entropy(hidden, weight, targets, VOCAB_SIZE, shares if with_shares else None)
    of_tokens = F.cross_entropy(F.linear(hidden, weight)[:, :VOCAB_SIZE], targets, reduction="none")
    theirs = 3 * (shares * of_tokens if with_shares else of_tokens).mean()
    torch.testing.assert_close(ours, theirs)
    operands_of_both = (hidden, weight, shares) if with_shares else (hidden, weight)
    expected = torch.autograd.grad(theirs, operands_of_both)
    for found, right in zip(torch.autograd.grad(ours, operands_of_both), expected, strict=True):
        torch.testing.assert_close(found, right)


def test_the_loss_of_each_token_is_its_surprise():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, VOCAB_SIZE, dtype=torch.float64, generator=generator)
    targets = torch.randint(VOCAB_SIZE, (2, 3), generator=generator)
    surprise = logits.exp().sum(-1).log() - logits.gather(-1, targets[..., None])[..., 0]
    torch.testing.assert_close(cross_entropies(logits, targets), surprise)


def test_an_improbable_target_has_a_finite_loss():
    hidden = torch.tensor([[1000.0, 0.0]])
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    value = linear_cross_entropy(hidden, weight, torch.tensor([1]), 2)
    assert value.item() == 1000


def test_the_loss_of_a_model_is_that_of_its_logits():
    model = initialise(model_config(), 5)
    hidden = torch.randn(2, 6, model.config.hidden_size)
    targets = torch.randint(model.config.vocab_size, (2, 6))
    expected = F.cross_entropy(model.readout(hidden).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(model.loss(hidden, targets), expected)
    with torch.no_grad():
        torch.testing.assert_close(model.loss(hidden, targets), expected)


def test_a_rank_of_one_is_the_argmax_and_no_token_of_a_tie():
    logits = torch.randn(50, 9, generator=torch.Generator().manual_seed(2))
    targets = torch.randint(9, (50,), generator=torch.Generator().manual_seed(2))
    assert torch.equal(ranks(logits, targets) == 1, logits.argmax(-1) == targets)
    order = logits.argsort(-1, descending=True)
    assert torch.equal(order.gather(-1, ranks(logits, targets)[:, None] - 1)[:, 0], targets)
    assert ranks(torch.zeros(1, 9), torch.tensor([0])).tolist() == [9]


def test_entropy_is_that_of_the_definition_and_of_known_distributions():
    logits = 3 * torch.randn(20, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    p = logits.exp() / logits.exp().sum(-1, keepdim=True)
    torch.testing.assert_close(entropies(logits), -(p * p.log()).sum(-1))
    uniform, certain = torch.zeros(1, 8), torch.tensor([[0.0, -1e4]])
    assert entropies(uniform).item() == pytest.approx(np.log(8))
    assert entropies(certain).item() == 0


def test_a_chunk_has_as_many_whole_multiples_of_rows_as_fit(monkeypatch):
    monkeypatch.setitem(loss.CHUNK_LOGITS, "cpu", 3 * MULTIPLE * PADDED + PADDED)
    chunks = []

    def linear(x: Tensor, weight: Tensor) -> Tensor:
        chunks.append(len(x))
        return F.linear(x, weight)

    monkeypatch.setattr(loss, "linear", linear)
    with torch.no_grad():
        linear_cross_entropy(*operands(7 * MULTIPLE + 1), VOCAB_SIZE)
    assert chunks == [3 * MULTIPLE, 3 * MULTIPLE, MULTIPLE + 1]
