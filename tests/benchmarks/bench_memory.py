"""Peak memory of forward and backward against the number of loop steps.

    python tests/benchmarks/bench_memory.py [--width 256] [--device cpu]

Each measurement runs in a process of its own. Printed are the peak above that of a step count of 4, and its
growth per extra step in states (batch x block x width float32, one for each of three groups):

- through all steps: every step keeps what its layers need;
- truncated to the last 4 steps. Aim: no growth;
- recomputed (activation checkpointing). Aim: at most 1.

On CPU the peak is the resident set, with every tensor in pages of its own; on CUDA that of torch's allocator.
"""

import argparse
import multiprocessing
import os
import resource
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from twoscale import config
from twoscale.model.transformer import NOISE_STD, initialise

FEWEST = 4
STEPS = (FEWEST, 8, 16)
WAYS = {
    "through all steps": {},
    "last 4 steps": {"backprop_depth": FEWEST},
    "recomputed": {"recompute": True},
}


def peak_bytes(model: config.ModelConfig, batch: int, steps: int, options: dict, device: str) -> int:
    """Most memory held at once during one forward and backward pass."""
    torch.set_num_threads(1)
    made = initialise(model, 0).to(device)
    tokens = torch.randint(model.vocab_size, (batch, model.context_length), device=device)
    noise = NOISE_STD * torch.randn(batch, model.context_length, model.hidden_size, device=device)
    logits = made(tokens, [steps] * len(model.config.groups), lambda group, k, like: noise, **options)
    F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_new_process(*arguments) -> int:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(peak_bytes, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--block", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    model = config.ModelConfig(
        num_layers=8, heads=arguments.heads, hidden_size=arguments.width, context_length=arguments.block, vocab_size=512,
        groups=((4,), (5, 6), (7,)), mean_loops=12, loops_sigma=0.5, sandwich="post_residual", state_init="noise",
        loop_noise=0.0, adapter_init="random", exit_norm="none",
    )  # fmt: skip
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # of glibc in the new processes: freed tensors leave the set
    states = len(model.config.groups) * arguments.batch * model.context_length * model.hidden_size * 4
    print(f"{arguments.device}, width {model.hidden_size}, {arguments.batch} x {model.context_length} tokens, steps {STEPS}")
    for way, options in WAYS.items():
        peaks = [in_new_process(model, arguments.batch, steps, options, arguments.device) for steps in STEPS]
        growth = (peaks[-1] - peaks[0]) / (STEPS[-1] - STEPS[0]) / states
        above = ", ".join(f"{(peak - peaks[0]) / 1e6:.0f}" for peak in peaks)
        print(f"{way}: {peaks[0] / 1e6:.0f} MB, then + {above} MB; {growth:.2f} states a step", flush=True)


if __name__ == "__main__":
    main()
