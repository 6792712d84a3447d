"""Peak memory of forward and backward pass as a function of the number of loop steps.

    python tests/benchmarks/bench_memory.py [--hidden-size 256] [--device cpu]

Each measurement runs in a new process. Printed are the peak at 4 loop steps, the difference to it at more of them,
and its growth per loop step in states (batch size x context length x hidden size float32, one for each of three
groups):

- gradient through all loop steps: each keeps what its layers need;
- gradient through the last 4 loop steps. Aim: no growth;
- recomputed (activation checkpointing). Aim: at most 1.

On CPU the peak is the resident set, with every tensor in pages of its own; on CUDA that of torch's allocator.
"""

import multiprocessing
import os
import resource
from typing import Any

import torch
import torch.nn.functional as F
from common import options

from twoscale.config import ModelConfig
from twoscale.model.noise import NOISE_STD
from twoscale.model.transformer import initialise

FEWEST = 4
LOOPS = (FEWEST, 8, 16)
GRADIENTS = {
    "through all loop steps": {},
    "last 4 loop steps": {"backprop_depth": FEWEST},
    "recomputed": {"recompute": True},
}


def peak_bytes(config: ModelConfig, batch_size: int, loops: int, options: dict[str, Any], device: str) -> int:
    """Peak memory of this process after one forward and backward pass."""
    torch.set_num_threads(1)
    shape = (batch_size, config.context_length)
    model = initialise(config, 0).to(device)
    tokens = torch.randint(config.vocab_size, shape, device=device)
    noise = NOISE_STD * torch.randn(*shape, config.hidden_size, device=device)
    logits = model(tokens, [loops] * len(config.groups), lambda group, k, like: noise, **options)
    F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_new_process(*arguments: Any) -> int:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(peak_bytes, arguments)


def main() -> None:
    sizes, device = (
        {"hidden_size": 256, "num_heads": 4, "context_length": 256},
        "cuda" if torch.cuda.is_available() else "cpu",
    )
    arguments = options(__doc__, **sizes, batch_size=4, device=device)
    sizes = {name: getattr(arguments, name) for name in ("num_heads", "hidden_size", "context_length")}
    config = ModelConfig(num_layers=8, vocab_size=512, **sizes)
    # of glibc in the new processes: freed tensors leave the resident set
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    state_bytes = len(config.groups) * arguments.batch_size * config.context_length * config.hidden_size * 4
    tokens = f"{arguments.batch_size} x {config.context_length} tokens"
    print(f"{arguments.device}, hidden size {config.hidden_size}, {tokens}, loops {LOOPS}")
    for gradient, keys in GRADIENTS.items():
        peaks = [in_new_process(config, arguments.batch_size, loops, keys, arguments.device) for loops in LOOPS]
        growth = (peaks[-1] - peaks[0]) / (LOOPS[-1] - LOOPS[0]) / state_bytes
        above = ", ".join(f"{(peak - peaks[0]) / 1e6:.0f}" for peak in peaks)
        print(f"{gradient}: {peaks[0] / 1e6:.0f} MB, then + {above} MB; {growth:.2f} states per loop step", flush=True)


if __name__ == "__main__":
    main()
