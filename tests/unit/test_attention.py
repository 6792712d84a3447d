"""causal_attention: the numbers and gradients of scaled_dot_product_attention, for short and long sequences."""

import pytest
import torch
import torch.nn.functional as F

from twoscale.model.kernels import SHORT, attention, causal_attention

LENGTHS = [1, 7, SHORT, SHORT + 1]


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


@pytest.mark.parametrize("length", [2, SHORT, SHORT + 1])
def test_products_are_batched_up_to_the_length_at_which_the_fused_kernel_is_faster(length):
    with torch.profiler.profile() as profile:
        causal_attention(*heads(length))
    assert any(event.key == "aten::baddbmm" for event in profile.key_averages()) is (length <= SHORT)


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
