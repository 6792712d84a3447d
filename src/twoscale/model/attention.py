"""Attention, and causal attention of whole sequences."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Up to this many tokens, batched products are faster than PyTorch's fused kernel on CPU, which gains nothing from a
# second thread there, and the weights take little memory (tests/benchmarks/bench_kernels.py).
SHORT = 128

# What flash attention takes, without a mask. No other fused kernel on CUDA knows that G < H. PyTorch would then write
# all attention weights, so each query head gets its own copy of keys and values.
HALF = (torch.float16, torch.bfloat16)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of each position to itself and those before: q (B, T, H, D), k, v (B, T, G, D) -> (B, T, H, D)."""
    if _is_short(q) and q.shape == k.shape:
        return _ShortAttention.apply(q, k, v) if torch.is_grad_enabled() else _attend(q, k, v)[0]
    q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
    return attention(q, k, v, is_causal=True).transpose(1, 2)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """softmax(q k / sqrt(D)) v for q (B, H, N, D) and k, v (B, G, T, D), where G divides H: (B, H, N, D).

    mask: which keys a query sees, broadcastable to (B, H, N, T).
    """
    grouped = q.shape[1] != k.shape[1]
    if grouped and q.is_cuda and (mask is not None or q.dtype not in HALF):
        k, v = (heads.repeat_interleave(q.shape[1] // heads.shape[1], dim=1) for heads in (k, v))
        grouped = False
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=grouped)


def row_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """softmax(q k / sqrt(D) + bias) v of one query for each of N texts: q (N, H, D) and k, v (N, G, T, D) -> (N, H, D).

    Two batched products, which on the CPU take half the time of PyTorch's fused kernel under a mask.

    bias: (N * G, 1, T), 0 where a query sees a key and -inf elsewhere.
    """
    queries = q.unflatten(1, (k.shape[1], -1)).flatten(0, 1)  # (N * G, H / G, D)
    weights = torch.baddbmm(bias, queries, k.flatten(0, 1).mT, alpha=q.shape[-1] ** -0.5).softmax(-1)
    return torch.bmm(weights, v.flatten(0, 1)).view_as(q)


def _is_short(q: Tensor) -> bool:
    return q.shape[1] <= SHORT and q.is_cpu and not torch.compiler.is_compiling()


def _attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """The result (B, T, H, D), and q, k, v (B * H, T, D) and the attention weights (B * H, T, T)."""
    batch, length, _, size = q.shape
    q, k, v = (_by_head(heads) for heads in (q, k, v))
    mask = q.new_full((length, length), -torch.inf).triu_(1)
    weights = torch.baddbmm(mask, q, k.mT, alpha=size**-0.5).softmax(-1)
    return _by_position(torch.bmm(weights, v), batch), q, k, v, weights


def _by_head(x: Tensor) -> Tensor:
    """(B, T, H, D) -> (B * H, T, D)."""
    return x.transpose(1, 2).flatten(0, 1)


def _by_position(x: Tensor, batch: int) -> Tensor:
    """(B * H, T, D) -> (B, T, H, D)."""
    return x.unflatten(0, (batch, -1)).transpose(1, 2)


class _ShortAttention(torch.autograd.Function):
    """Keeps the attention weights for the backward pass."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result, *kept = _attend(q, k, v)
        ctx.save_for_backward(*kept)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        q, k, v, weights = ctx.saved_tensors
        batch, of_result = len(gradient), _by_head(gradient)
        of_weights = torch.bmm(of_result, v.mT)
        # d softmax: weights * (of_weights - sum(weights * of_weights)) a row
        of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype).mul_(q.shape[-1] ** -0.5)
        products = torch.bmm(of_scores, k), torch.bmm(of_scores.mT, q), torch.bmm(weights.mT, of_result)
        return tuple(_by_position(product, batch) for product in products)
