"""How fast training batches come from a token shard, against the speed at which a model uses them up.

    python tests/benchmarks/bench_batches.py [--tokens 300000000]

A shard of random ids is written, and batches of the paper's size are read from its memory map in the random
order of training. Aim: at least 20 times 100 000 tokens/s, what the paper's model may take on one data-centre
GPU, without a copy of the shard in memory: printed is also by how much the process's own memory grows, the
permutation of an epoch included. The pages of a shard that was just written are in the system's cache.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from twoscale.data.batches import ORDERS, Batches

CONSUMED = 100_000  # tokens/s
CHUNK = 2**24


def write_shard(path: Path, tokens: int) -> np.ndarray:
    random = np.random.default_rng(0)
    with path.open("wb") as file:
        for start in range(0, tokens, CHUNK):
            file.write(random.integers(0, 50257, min(CHUNK, tokens - start), dtype=np.uint16))
    return np.memmap(path, dtype="<u2", mode="r")


def private_memory() -> float:
    """MB of this process that are no pages of a file."""
    memory = psutil.Process().memory_info()
    return (memory.rss - memory.shared) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000_000, help="length of the shard (default: %(default)s)")
    parser.add_argument("--block", type=int, default=512)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--steps", type=int, default=500, help="batches of one repeat")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shard = write_shard(Path(folder) / "train.bin", arguments.tokens)
        for order in ORDERS:
            before = private_memory()
            batches = Batches(shard, arguments.block, arguments.batch, order, seed=0)
            batches[0]
            speeds = []
            for repeat in range(arguments.repeats):
                started = time.perf_counter()
                for step in range(repeat * arguments.steps, (repeat + 1) * arguments.steps):
                    inputs, _ = batches[step]
                speeds.append(arguments.steps * inputs.numel() / (time.perf_counter() - started))
            speed = statistics.median(speeds)
            print(f"{order:<11} {speed / 1e6:6.1f} M tokens/s, {speed / CONSUMED:.0f} times 100 000", end=" ")
            print(f"(from {min(speeds) / CONSUMED:.0f} to {max(speeds) / CONSUMED:.0f}),", end=" ")
            print(f"shard {shard.nbytes / 1e6:.0f} MB, memory + {private_memory() - before:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
