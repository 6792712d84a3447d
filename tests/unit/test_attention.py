"""causal_attention: the numbers and gradients of scaled_dot_product_attention, for short and long sequences."""

import pytest
import torch
import torch.nn.functional as F

from twoscale.model import attention
from twoscale.model.attention import causal_attention

LENGTHS = [1, 7, attention.SHORT, attention.SHORT + 1]


def heads(length: int) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values (B, T, H, D), views of one tensor as in the model."""
    generator = torch.Generator().manual_seed(length)
    qkv = torch.randn(2, length, 3, 2, 4, dtype=torch.float64, generator=generator)
    return qkv.requires_grad_().unbind(2)


def of_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


@pytest.mark.parametrize("length", LENGTHS)
def test_result_and_gradients_are_those_of_torch(length):
    inputs = heads(length)
    ours, theirs = causal_attention(*inputs), of_torch(*inputs)
    torch.testing.assert_close(ours, theirs)
    gradient = torch.randn(ours.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.autograd.grad(theirs, inputs, gradient)
    for found, right in zip(torch.autograd.grad(ours, inputs, gradient), expected, strict=True):
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("length", LENGTHS)
def test_without_a_gradient_the_numbers_are_the_same(length):
    inputs = heads(length)
    with torch.no_grad():
        torch.testing.assert_close(causal_attention(*inputs), of_torch(*inputs))


def test_a_position_does_not_see_later_ones():
    q, k, v = (x.detach().clone() for x in heads(7))
    before = causal_attention(q, k, v)[:, :4]
    k[:, 4:], v[:, 4:] = 1e6, 1e6
    assert torch.equal(causal_attention(q, k, v)[:, :4], before)
