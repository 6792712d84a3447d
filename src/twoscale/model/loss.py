"""Losses and measures of predictions: cross-entropy, entropy and rank of next tokens.

In training the cross-entropy is computed without the logits of a whole batch.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from twoscale.model.kernels import MULTIPLE, linear, weight_gradient

# Logits at a time. A chunk should fit a CPU's caches and allocator; a GPU needs more rows to be
# busy.
CHUNK_LOGITS = {"cpu": 2**24, "cuda": 2**26}


def cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """Nats (B, T) of each next token, from logits (B, T, V) and targets (B, T); in float32 at
    least.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    by_class = logits.transpose(1, 2)  # (B, V, T), as PyTorch takes them
    return F.cross_entropy(by_class, targets.to(logits.device), reduction="none")


def entropies(logits: Tensor) -> Tensor:
    """Entropy in nats of each prediction: logits (..., V) -> (...).

    Without the 1e-10 that the exit criterion `entropy_diff` adds to probabilities, as Geiping's
    code does.
    """
    log_p = logits.log_softmax(-1)  # (..., V)
    return -torch.linalg.vecdot(log_p.exp(), log_p)


def ranks(logits: Tensor, targets: Tensor) -> Tensor:
    """Rank of each next token, from logits (..., V) and targets (...): int64 (...).

    The number of tokens that are at least as likely as it, so 1 is the most likely one, and no
    token of several that share the largest logit.
    """
    of_targets = logits.gather(-1, targets.to(logits.device)[..., None])  # (..., 1)
    return (logits >= of_targets).sum(-1)


def exit_log_probabilities(gate: Tensor) -> Tensor:
    """Log-probability of leaving after each loop step: logits of an exit gate (K, ...) -> (K, ...).

    p^k = lambda^k prod_{j<k} (1 - lambda^j) with lambda the sigmoid of the logit, and the rest at
    the last loop step, whose gate is not read (Ouro, arXiv 2510.25741).
    """
    gate = gate.to(torch.promote_types(gate.dtype, torch.float32))  # bfloat16 under autocast
    first = torch.zeros_like(gate[:1])
    stays = F.logsigmoid(-gate[:-1]).cumsum(0)  # sum_{j<k} log(1 - lambda^j)
    leaves = F.logsigmoid(gate[:-1])  # log(lambda^k)
    return torch.cat([first, stays]) + torch.cat([leaves, first])


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, vocab_size: int, shares: Tensor | None = None
) -> Tensor:
    """Mean cross-entropy in nats of the logits `hidden @ weight.T`.

    The same as `F.cross_entropy(F.linear(hidden, weight)[:, :vocab_size], targets)`. Rows are read
    out in chunks, and the gradient of a chunk is computed while its probabilities are at hand.
    `F.linear_cross_entropy` of PyTorch 2.13 has chunks, too, but takes five times as long on CPU
    (tests/benchmarks/bench_kernels.py).

    hidden: states of N tokens (N, C). weight: the head (R, C), whose rows from `vocab_size` on are
    padding and have probability 0. targets: ids (N,). shares: factor of each token's loss (N,),
    which has a gradient too.
    """
    needs_gradient = torch.is_grad_enabled()
    return _LinearCrossEntropy.apply(hidden, weight, targets, vocab_size, shares, needs_gradient)


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes the gradients in the forward pass; the backward pass scales them in place."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        vocab_size: int,
        shares: Tensor | None,
        needs_gradient: bool,
    ) -> Tensor:
        count = len(hidden)
        size = _chunk_size(count, len(weight), hidden.device.type)
        of_hidden = torch.empty_like(hidden) if needs_gradient else hidden
        of_weight = None  # summed over the chunks, (R, C)
        of_targets, losses = [], []
        for start in range(0, count, size):
            chunk = slice(start, start + size)
            rows, ids = hidden[chunk], targets[chunk, None]  # (size, C), (size, 1)
            factor = None if shares is None else shares[chunk, None]  # (size, 1)
            logits = linear(rows, weight)  # (size, R)
            logits[:, vocab_size:] = -torch.inf  # so the padding has probability 0
            of_ids = logits.gather(1, ids)  # of the targets, (size, 1)
            top = logits.amax(1, keepdim=True)  # (size, 1)
            dtype = torch.promote_types(logits.dtype, torch.float32)  # bfloat16 under autocast
            # where it can, the softmax overwrites the logits, of which only `of_ids` and `top` are
            # still needed
            in_place = logits if logits.dtype == dtype else None
            p = torch.softmax(logits, -1, dtype, out=in_place)  # (size, R)
            # log p of the target; the largest p is 1 / sum(exp(logits - top)), and the target's may
            # be too small for a float
            log_p = of_ids.to(dtype) - top + p.amax(1, keepdim=True).log_()
            of_targets.append(log_p)
            losses.append(-(log_p if factor is None else log_p * factor).sum())
            if needs_gradient:
                # d loss / d logits = p - onehot(target), times the share of the token
                p.scatter_add_(1, ids, p.new_full(ids.shape, -1.0))
                share = 1 / count if factor is None else factor / count
                of_hidden[chunk].copy_(linear(p, weight.T)).mul_(share)  # (size, C)
                of_weight = weight_gradient(p, rows * share, of_weight)
        # d loss / d share of a token = -log p / N
        of_shares = None if shares is None else torch.cat(of_targets)[:, 0] / -count
        ctx.save_for_backward(of_hidden, of_weight, of_shares)
        return torch.stack(losses).sum() / count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden, of_weight, of_shares = ctx.saved_tensors
        # elsewhere than on the CPU the host would wait for the device
        if not gradient.is_cpu or gradient.item() != 1:
            for saved in ctx.saved_tensors:
                if saved is not None:
                    saved.mul_(gradient)  # so autograd refuses a second backward pass
        return of_hidden, of_weight, None, None, of_shares, None


def _chunk_size(count: int, vocab_size: int, device: str) -> int:
    """Rows of a chunk, a multiple of `MULTIPLE`: about as many in each."""
    most = CHUNK_LOGITS.get(device, CHUNK_LOGITS["cpu"]) // vocab_size  # rows
    # as few chunks as the limit allows; the rows are then spread evenly over them
    chunks = max(1, math.ceil(count / max(MULTIPLE, most // MULTIPLE * MULTIPLE)))
    return MULTIPLE * math.ceil(count / (chunks * MULTIPLE))
