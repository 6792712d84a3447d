"""causal_attention: the numbers and gradients of products and softmax, and groups of heads."""

import pytest
import torch

from twoscale.model.kernels import attention, causal_attention


def heads(length: int) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values (B, T, H, D), views of one tensor as in the model."""
    generator = torch.Generator().manual_seed(length)
    qkv = torch.randn(2, length, 3, 2, 4, dtype=torch.float64, generator=generator)
    return qkv.requires_grad_().unbind(2)


@pytest.mark.parametrize("length", [1, 7, 129])
def test_a_position_attends_to_itself_and_those_before(length):
    q, k, v = inputs = heads(length)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 2  # sqrt(D)
    weights = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf).softmax(-1)
    ours, expected = causal_attention(*inputs), torch.einsum("bhqk,bkhd->bqhd", weights, v)
    torch.testing.assert_close(ours, expected)
    gradient = torch.randn(ours.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    of_theirs = torch.autograd.grad(expected, inputs, gradient)
    for found, right in zip(torch.autograd.grad(ours, inputs, gradient), of_theirs, strict=True):
        torch.testing.assert_close(found, right)


def grouped_heads() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries (B, H, T, D) and half as many heads of keys and values, with B = H = T."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 4, 4, 4, 5, dtype=torch.float64, generator=generator)
    return q, k[:, :2], v[:, :2]


@pytest.mark.parametrize("seen", [None, torch.ones(4, 4, dtype=torch.bool).tril()], ids=["all", "some"])
def test_heads_of_a_group_share_keys_and_values(seen):
    q, k, v = grouped_heads()
    scores = q @ k.repeat_interleave(2, 1).mT / 5**0.5
    if seen is not None:
        scores = scores.where(seen, -torch.inf)
    torch.testing.assert_close(attention(q, k, v, seen), scores.softmax(-1) @ v.repeat_interleave(2, 1))


def test_causal_attention_of_grouped_heads_is_that_of_repeated_ones():
    q, k, v = (x.transpose(1, 2) for x in grouped_heads())
    repeated = causal_attention(q, k.repeat_interleave(2, 2), v.repeat_interleave(2, 2))
    torch.testing.assert_close(causal_attention(q, k, v), repeated)
