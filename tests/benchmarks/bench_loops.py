"""What looping costs beyond the layers, forward and backward, against plain stacks of torch's own modules.

    python tests/benchmarks/bench_loops.py [--width 256] [--device cpu]

1. The looped model against an unshared stack: the same layer applications, the same 2C -> C projections,
   widths, batch and backward depth, but each application with weights of its own and no loop machinery.
   Aim: at most 1.10.
2. The model with `groups: []` against the plain stack of its layers. Aim: at most 1.05.

The two of a pair run in turns; printed are the medians and the ratio of each turn's times. On one CPU thread
the clock is the processor's own, so that other work on the machine does not enter.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from twoscale import config
from twoscale.model.transformer import NOISE_STD, LoopedTransformer, initialise


class PlainLayer(nn.Module):
    """The paper's layer from nn.Linear, nn.RMSNorm and scaled_dot_product_attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(4))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            z.view(batch, length, self.heads, -1).transpose(1, 2) for z in self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = self.norms[1](x + self.out(attended))
        return self.norms[3](x + self.down(F.silu(self.up(self.norms[2](x)))))


class PlainStack(nn.Module):
    """The looped model unrolled: every application of a layer and of an adapter has weights of its own."""

    def __init__(self, model: config.ModelConfig, loops: list[int]) -> None:
        super().__init__()
        self.width = model.hidden_size
        self.tokens = nn.Embedding(model.padded_vocab_size, model.hidden_size)
        self.positions = nn.Embedding(model.context_length, model.hidden_size)
        self.norm = nn.RMSNorm(model.hidden_size, eps=1e-6)
        nn.init.normal_(self.tokens.weight, std=0.02)
        group_of = {group[0]: number for number, group in enumerate(model.groups)}
        looped = {layer for group in model.groups for layer in group}
        self.blocks = nn.ModuleList()
        for layer in range(1, model.num_layers + 1):
            if layer in group_of:
                number = group_of[layer]
                self.blocks.append(
                    nn.ModuleList(
                        nn.ModuleList(
                            [
                                nn.Linear(2 * model.hidden_size, model.hidden_size, bias=False),
                                *(PlainLayer(model.hidden_size, model.num_heads) for _ in model.groups[number]),
                            ]
                        )
                        for _ in range(loops[number])
                    )
                )
            elif layer not in looped:
                self.blocks.append(PlainLayer(model.hidden_size, model.num_heads))

    def forward(self, tokens, noise):
        x = (self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]) * self.width**0.5
        for block in self.blocks:
            if isinstance(block, PlainLayer):
                x = block(x)
                continue
            entered, x = x, noise
            for adapter, *layers in block:
                x = adapter(torch.cat([x, entered], dim=-1))
                for layer in layers:
                    x = layer(x)
        return F.linear(self.norm(x), self.tokens.weight)


def seconds(run, synchronise, clock) -> float:
    synchronise()
    started = clock()
    run()
    synchronise()
    return clock() - started


def compare(name: str, ours, peer, repeats: int, synchronise, clock) -> None:
    for run in (ours, peer):
        run()  # warm up
    pairs = [(seconds(ours, synchronise, clock), seconds(peer, synchronise, clock)) for _ in range(repeats)]
    ratios = [a / b for a, b in pairs]
    left, right = (statistics.median(times) * 1e3 for times in zip(*pairs, strict=True))
    print(f"{name}: {left:.0f} ms against {right:.0f} ms, ratio {statistics.median(ratios):.3f}", end=" ")
    print(f"(from {min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--block", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--loops", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = arguments.device
    synchronise = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    clock = time.process_time if device == "cpu" and arguments.threads == 1 else time.perf_counter
    model = config.ModelConfig(
        num_layers=8, heads=arguments.heads, hidden_size=arguments.width, context_length=arguments.block, vocab_size=arguments.vocabulary,
        groups=((4,), (5, 6), (7,)), mean_loops=12, loops_sigma=0.5, sandwich="post_residual", state_init="noise",
        loop_noise=0.0, adapter_init="random", exit_norm="none",
    )  # fmt: skip
    tokens = torch.randint(model.vocab_size, (arguments.batch, model.context_length), device=device)
    noise = NOISE_STD * torch.randn(arguments.batch, model.context_length, model.hidden_size, device=device)
    print(f"{device}, width {model.hidden_size}, {arguments.batch} x {model.context_length} tokens, {arguments.loops} loops a group")

    def both_ways(module: nn.Module, *inputs):
        def run():
            logits = module(*inputs)
            F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
            module.zero_grad(set_to_none=True)

        return run

    loops = [arguments.loops] * len(model.config.groups)
    looped: LoopedTransformer = initialise(model, 0).to(device)
    peer = PlainStack(model, loops).to(device)
    compare(
        "looped model against unshared stack",
        both_ways(looped, tokens, loops, lambda group, k, like: noise),
        both_ways(peer, tokens, noise),
        arguments.repeats,
        synchronise,
        clock,
    )
    plain = config.ModelConfig(**vars(model) | {"groups": ()})
    compare(
        "groups [] against plain stack",
        both_ways(initialise(plain, 0).to(device), tokens, [], None),
        both_ways(PlainStack(plain, []).to(device), tokens, None),
        arguments.repeats,
        synchronise,
        clock,
    )


if __name__ == "__main__":
    main()
