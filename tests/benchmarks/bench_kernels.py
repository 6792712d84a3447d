"""The library's operations against PyTorch's

    python tests/benchmarks/bench_kernels.py [--repeats 5] [--threads 2]

Forward and backward passes: the time of PyTorch's operation over the time of ours, so a number
above 1 means that ours is faster. The memory of the loss is what it adds to the peak of the
process, besides gradients.
"""

import resource
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from common import options, ratios, record, turns
from torch import Tensor

from twoscale.model.kernels import RMSNorm, causal_attention, linear
from twoscale.model.loss import linear_cross_entropy

SHAPES = ["64,4,8,128", "384,6,4,256", "768,12,2,512"]  # hidden size, heads, sequences, tokens
VOCAB_SIZE, PADDED = 50257, 50304
Call = Callable[..., Tensor]


def fused_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2)


def whole_logits(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight)[:, :VOCAB_SIZE], targets)


def pairs(
    size: int, heads: int, batch: int, length: int
) -> Iterator[tuple[str, Call, Call, tuple[Tensor, ...]]]:
    """Name, our operation, PyTorch's, and the operands of both."""
    random = partial(torch.randn, requires_grad=True)
    ours, theirs = RMSNorm(size, eps=1e-5), torch.nn.RMSNorm(size, eps=1e-5)
    yield "linear", linear, F.linear, (random(batch, length, size), random(4 * size, size))
    yield "RMSNorm", ours, theirs, (random(batch, length, size),)
    qkv = [random(batch, length, heads, size // heads) for _ in range(3)]
    yield "attention", causal_attention, fused_attention, tuple(qkv)
    targets = torch.randint(VOCAB_SIZE, (batch * length,))
    operands = (random(batch * length, size), random(PADDED, size))
    loss = partial(linear_cross_entropy, targets=targets, vocab_size=VOCAB_SIZE)
    yield "loss", loss, partial(whole_logits, targets=targets), operands


def once(call: Call, operands: tuple[Tensor, ...]) -> Callable[[], object]:
    """A call of one forward and backward pass."""
    return lambda: torch.autograd.grad(call(*operands).sum(), operands)


def loss_memory(size: int, heads: int, batch: int, length: int) -> None:
    """Record the memory of our loss over that of whole logits; before anything larger, since a peak
    only grows.
    """
    *_, (_, ours, theirs, operands) = pairs(size, heads, batch, length)
    peaks = []
    for call in (lambda: None, once(ours, operands), once(theirs, operands)):
        call()
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    gradients = sum(operand.numel() * operand.element_size() for operand in operands) / 1024
    mine, whole = (max(peak - peaks[0] - gradients, 1) for peak in peaks[1:])
    record(f"memory of the loss against whole logits, width {size}", [mine / whole], aim="≤ 0.33")


def main() -> None:
    smoke = {"shapes": ["16,2,2,8"], "repeats": 2, "threads": [1]}
    arguments = options(__doc__, smoke, shapes=SHAPES, repeats=5, threads=[2])
    shapes = [tuple(map(int, shape.split(","))) for shape in arguments.shapes]
    loss_memory(*shapes[-1])
    for shape in shapes:
        for name, ours, theirs, operands in pairs(*shape):
            for threads in arguments.threads:
                torch.set_num_threads(threads)
                rows = turns(
                    [once(theirs, operands), once(ours, operands)],
                    arguments.repeats * max(1, 384 // shape[0]),
                )
                label = f"{name}, width {shape[0]}, threads: {threads}"
                record(label, ratios(rows), aim="≥ 1")


if __name__ == "__main__":
    main()
