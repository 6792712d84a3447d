"""Cross-entropy of next tokens: from logits, and in training without the logits of a whole batch.
Entropy, rank.
"""

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
    return F.cross_entropy(logits.transpose(1, 2), targets.to(logits.device), reduction="none")


def entropies(logits: Tensor) -> Tensor:
    """Entropy in nats of each prediction: logits (..., V) -> (...).

    Without the 1e-10 that the exit criterion `entropy_diff` adds to probabilities, as Geiping's
    code does.
    """
    log_p = logits.log_softmax(-1)
    return -torch.linalg.vecdot(log_p.exp(), log_p)


def ranks(logits: Tensor, targets: Tensor) -> Tensor:
    """Rank of each next token, from logits (..., V) and targets (...): int64 (...).

    The number of tokens that are at least as likely as it, so 1 is the most likely one, and no
    token of several that share the largest logit.
    """
    of_targets = logits.gather(-1, targets.to(logits.device)[..., None])
    return (logits >= of_targets).sum(-1)


def exit_log_probabilities(gate: Tensor) -> Tensor:
    """Log-probability of leaving after each loop step: logits of an exit gate (K, ...) -> (K, ...).

    p^k = lambda^k prod_{j<k} (1 - lambda^j) with lambda the sigmoid of the logit, and the rest at
    the last loop step, whose gate is not read (Ouro, arXiv 2510.25741).
    """
    gate = gate.to(torch.promote_types(gate.dtype, torch.float32))  # bfloat16 under autocast
    first = torch.zeros_like(gate[:1])
    loops_on = torch.cat(
        [first, F.logsigmoid(-gate[:-1]).cumsum(0)]
    )  # that a token takes loop step k
    leaves = torch.cat([F.logsigmoid(gate[:-1]), first])
    return loops_on + leaves


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
    return _LinearCrossEntropy.apply(
        hidden, weight, targets, vocab_size, shares, torch.is_grad_enabled()
    )


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
        with_gradient: bool,
    ) -> Tensor:
        count, most = (
            len(hidden),
            CHUNK_LOGITS.get(hidden.device.type, CHUNK_LOGITS["cpu"]) // len(weight),
        )  # rows
        parts = max(1, -(-count // max(MULTIPLE, most // MULTIPLE * MULTIPLE)))
        size = -(-count // (parts * MULTIPLE)) * MULTIPLE  # about as many rows in each chunk
        of_hidden, of_weight = torch.empty_like(hidden) if with_gradient else hidden, None
        chunks = (hidden.split(size), targets[:, None].split(size), of_hidden.split(size))
        factors = (
            [None] * len(chunks[0]) if shares is None else shares[:, None].split(size)
        )  # (size, 1) each
        of_targets, losses = [], []
        for rows, ids, of_rows, factor in zip(*chunks, factors, strict=True):
            logits = linear(rows, weight)  # (size, R)
            logits[:, vocab_size:] = -torch.inf
            of_ids, top = logits.gather(1, ids), logits.amax(1, keepdim=True)  # (size, 1)
            dtype = torch.promote_types(logits.dtype, torch.float32)  # bfloat16 under autocast
            p = torch.softmax(logits, -1, dtype, out=logits if logits.dtype == dtype else None)
            # the largest p is 1 / sum(exp(logits - top)), and the target's may be too small for a
            # float
            of_targets.append(of_ids.to(dtype) - top + p.amax(1, keepdim=True).log_())
            losses.append(-(of_targets[-1] if factor is None else of_targets[-1] * factor).sum())
            if with_gradient:
                # d loss / d logits = p - onehot(target), times the share of the token
                p.scatter_add_(1, ids, p.new_full(ids.shape, -1.0))
                share = 1 / count if factor is None else factor / count
                of_rows.copy_(linear(p, weight.T)).mul_(share)
                of_weight = weight_gradient(p, rows * share, of_weight)
        of_shares = None if shares is None else torch.cat(of_targets)[:, 0] / -count
        ctx.save_for_backward(of_hidden, of_weight, of_shares)
        return torch.stack(losses).sum() / count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden, of_weight, of_shares = ctx.saved_tensors
        # in place: autograd refuses a second backward pass through saved tensors that have changed
        if not (
            gradient.is_cpu and gradient.item() == 1
        ):  # elsewhere the host would wait for the device
            for kept in (of_hidden, of_weight, of_shares):
                if kept is not None:
                    kept.mul_(gradient)
        return of_hidden, of_weight, None, None, of_shares, None
