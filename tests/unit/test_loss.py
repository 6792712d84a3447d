"""linear_cross_entropy: the loss and gradients of whole logits, without holding them. Ranks."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from twoscale.model import loss
from twoscale.model.kernels import MULTIPLE
from twoscale.model.loss import linear_cross_entropy, ranks

VOCAB_SIZE, PADDED, CHANNELS = 37, 64, 8


def operands(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(
        tokens, CHANNELS, dtype=torch.float64, generator=generator, requires_grad=True
    )
    weight = torch.randn(
        PADDED, CHANNELS, dtype=torch.float64, generator=generator, requires_grad=True
    )
    return hidden, weight, torch.randint(VOCAB_SIZE, (tokens,), generator=generator)


@pytest.mark.parametrize("with_shares", [False, True])
@pytest.mark.parametrize("tokens", [1, MULTIPLE, 2 * MULTIPLE + 5])
def test_loss_and_gradients_are_those_of_whole_logits(tokens, with_shares, monkeypatch):
    """Shares weigh the loss of each token, and have a gradient, too. Rows that pad the vocabulary
    have none.
    """
    monkeypatch.setitem(loss.CHUNK_LOGITS, "cpu", 1)  # the smallest chunks
    hidden, weight, targets = operands(tokens)
    shares = torch.rand(
        tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True
    )
    ours = 3 * linear_cross_entropy(
        hidden, weight, targets, VOCAB_SIZE, shares if with_shares else None
    )
    of_tokens = F.cross_entropy(F.linear(hidden, weight)[:, :VOCAB_SIZE], targets, reduction="none")
    theirs = 3 * (shares * of_tokens if with_shares else of_tokens).mean()
    torch.testing.assert_close(ours, theirs)
    operands_of_both = (hidden, weight, shares) if with_shares else (hidden, weight)
    expected = torch.autograd.grad(theirs, operands_of_both)
    for found, right in zip(torch.autograd.grad(ours, operands_of_both), expected, strict=True):
        torch.testing.assert_close(found, right)


def test_an_improbable_target_has_a_finite_loss():
    hidden = torch.tensor([[1000.0, 0.0]])
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    value = linear_cross_entropy(hidden, weight, torch.tensor([1]), 2)
    assert value.item() == 1000


def test_a_rank_of_one_is_the_argmax_and_no_token_of_a_tie():
    logits = torch.randn(50, 9, generator=torch.Generator().manual_seed(2))
    targets = torch.randint(9, (50,), generator=torch.Generator().manual_seed(2))
    assert torch.equal(ranks(logits, targets) == 1, logits.argmax(-1) == targets)
    order = logits.argsort(-1, descending=True)
    assert torch.equal(order.gather(-1, ranks(logits, targets)[:, None] - 1)[:, 0], targets)
    assert ranks(torch.zeros(1, 9), torch.tensor([0])).tolist() == [9]


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
