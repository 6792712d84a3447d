"""The cost of looping in training

    python tests/benchmarks/bench_loops.py [--hidden-size 256] [--device cpu]

Forward and backward passes are timed, in CPU time of one thread. The unshared stack applies the same layers and 2C → C
projections, built from PyTorch's modules, but each application has separate weights. The plain stack has the layers of
a model without loops. Memory per loop step is the growth of peak memory from 4 to 16 loop steps; each peak is measured
in a separate process. The unit is one state, batch size × context length × hidden size in float32, for each of three
groups.
"""

import multiprocessing
import os
import resource
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from common import clock_of, compare, options, record
from torch import Tensor, nn

from twoscale.config import ModelConfig
from twoscale.model.noise import NOISE_STD
from twoscale.model.transformer import initialise

FEWEST, MOST = 4, 16
GRADIENTS = {  # what is kept of the loop steps: options of the model and the aim
    "gradient through all": ({}, ""),
    "gradient through the last 4": ({"backprop_depth": FEWEST}, "≤ 0.1"),
    "recomputed": ({"recompute": True}, "≤ 1"),
}


class PlainLayer(nn.Module):
    """The paper's layer from nn.Linear, nn.RMSNorm and scaled_dot_product_attention."""

    def __init__(self, size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norms = nn.ModuleList(nn.RMSNorm(size, eps=1e-6) for _ in range(4))
        self.qkv = nn.Linear(size, 3 * size, bias=False)
        self.out = nn.Linear(size, size, bias=False)
        self.up = nn.Linear(size, 4 * size, bias=False)
        self.down = nn.Linear(4 * size, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, size = x.shape
        heads = (batch, length, self.num_heads, -1)
        q, k, v = (z.view(heads).transpose(1, 2) for z in self.qkv(self.norms[0](x)).chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, size)
        x = self.norms[1](x + self.out(attended))
        return self.norms[3](x + self.down(F.silu(self.up(self.norms[2](x)))))


class PlainGroup(nn.Module):
    """A looped group unrolled: every loop step has an adapter and layers of its own."""

    def __init__(self, config: ModelConfig, num_layers: int, loops: int) -> None:
        super().__init__()
        size = config.hidden_size
        self.adapters = nn.ModuleList(nn.Linear(2 * size, size, bias=False) for _ in range(loops))
        self.layers = nn.ModuleList(
            nn.Sequential(*(PlainLayer(size, config.num_heads) for _ in range(num_layers))) for _ in range(loops)
        )

    def forward(self, entered: Tensor, x: Tensor) -> Tensor:
        for adapter, layers in zip(self.adapters, self.layers, strict=True):
            x = layers(adapter(torch.cat([x, entered], dim=-1)))
        return x


class PlainStack(nn.Module):
    """The looped model unrolled."""

    def __init__(self, config: ModelConfig, loops: Sequence[int]) -> None:
        super().__init__()
        self.scale = config.hidden_size**0.5
        self.tokens = nn.Embedding(config.padded_vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.context_length, config.hidden_size)
        self.norm = nn.RMSNorm(config.hidden_size, eps=1e-6)
        nn.init.normal_(self.tokens.weight, std=0.02)
        group_at = {group[0]: index for index, group in enumerate(config.groups)}
        looped = {number for group in config.groups for number in group}
        self.blocks = nn.ModuleList()
        for number in range(1, config.num_layers + 1):
            if number in group_at:
                index = group_at[number]
                self.blocks.append(PlainGroup(config, len(config.groups[index]), loops[index]))
            elif number not in looped:
                self.blocks.append(PlainLayer(config.hidden_size, config.num_heads))

    def forward(self, tokens: Tensor, noise: Tensor | None) -> Tensor:
        x = (self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]) * self.scale
        for block in self.blocks:
            x = block(x, noise) if isinstance(block, PlainGroup) else block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def train_step(module: nn.Module, tokens: Tensor, *inputs: object) -> Callable[[], None]:
    """A call that runs one forward and backward pass."""

    def call() -> None:
        logits = module(tokens, *inputs)
        F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        module.zero_grad(set_to_none=True)

    return call


def peak_bytes(config: ModelConfig, batch_size: int, loops: int, keys: dict[str, Any], device: str) -> int:
    """Peak memory of this process after one forward and backward pass."""
    torch.set_num_threads(1)
    shape = (batch_size, config.context_length)
    model = initialise(config, 0).to(device)
    tokens = torch.randint(config.vocab_size, shape, device=device)
    noise = NOISE_STD * torch.randn(*shape, config.hidden_size, device=device)
    logits = model(tokens, [loops] * len(config.groups), lambda group, k, like: noise, **keys)
    F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_new_process(*arguments: Any) -> int:
    """`peak_bytes` in a process in which glibc returns freed tensors, so that they leave the resident set."""
    returning = mock.patch.dict(os.environ, MALLOC_MMAP_THRESHOLD_="65536")
    with returning, multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(peak_bytes, arguments)


def compare_memory(config: ModelConfig, batch_size: int, gradients: list[str], device: str) -> None:
    state_bytes = len(config.groups) * batch_size * config.context_length * config.hidden_size * 4
    for gradient in gradients:
        keys, aim = GRADIENTS[gradient]
        few, many = (in_new_process(config, batch_size, loops, keys, device) for loops in (FEWEST, MOST))
        growth = (many - few) / (MOST - FEWEST) / state_bytes
        record(f"memory per loop step, {gradient}", [growth], "states", aim)


def main() -> None:
    sizes = {"hidden_size": 256, "num_heads": 4, "context_length": 256, "batch_size": 4, "vocab_size": 4096}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tiny = {
        "hidden_size": 32,
        "context_length": 16,
        "batch_size": 2,
        "loops": 2,
        "repeats": 2,
        "memory": ["recomputed"],
    }
    arguments = options(__doc__, tiny, **sizes, loops=6, repeats=9, threads=1, memory=[*GRADIENTS], device=device)
    torch.set_num_threads(arguments.threads)
    sizes = {name: getattr(arguments, name) for name in ("num_heads", "hidden_size", "context_length", "vocab_size")}
    config, device = ModelConfig(num_layers=8, **sizes), arguments.device
    shape = (arguments.batch_size, config.context_length)
    tokens = torch.randint(config.vocab_size, shape, device=device)
    noise = NOISE_STD * torch.randn(*shape, config.hidden_size, device=device)
    print(f"{device}, hidden size {config.hidden_size}, {shape[0]} x {shape[1]} tokens, {arguments.loops} loops")

    loops = [arguments.loops] * len(config.groups)
    timing = {"repeats": arguments.repeats, "clock": clock_of(arguments.device, arguments.threads)}
    looped, stack = initialise(config, 0).to(device), PlainStack(config, loops).to(device)
    ours, peer = train_step(looped, tokens, loops, lambda group, k, like: noise), train_step(stack, tokens, noise)
    compare("looped model against an unshared stack", ours, peer, aim="≤ 1.10", **timing)
    unlooped = ModelConfig(num_layers=8, groups=(), **sizes)
    plain, stack = initialise(unlooped, 0).to(device), PlainStack(unlooped, []).to(device)
    ours, peer = train_step(plain, tokens, [], None), train_step(stack, tokens, None)
    compare("`groups: []` against a plain stack", ours, peer, aim="≤ 1.05", **timing)
    compare_memory(config.model_copy(update={"vocab_size": 512}), arguments.batch_size, arguments.memory, device)


if __name__ == "__main__":
    main()
