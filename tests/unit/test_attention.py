"""causal_attention: the numbers and gradients of products and softmax."""

import pytest
import torch

from twoscale.model.kernels import causal_attention


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
    gradient = torch.randn(
        ours.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    of_theirs = torch.autograd.grad(expected, inputs, gradient)
    for found, right in zip(torch.autograd.grad(ours, inputs, gradient), of_theirs, strict=True):
        torch.testing.assert_close(found, right)
