"""Throughput of training batches from a token shard, compared with a model's consumption.

    python tests/benchmarks/bench_batches.py [--tokens 300000000]

Writes a shard of random ids and reads batches of the paper's size from its memory map in the random order of training.
Aim: at least 20 times 100 000 tokens/s, the upper estimate for the paper's model on one data-centre GPU, without a
copy of the shard in memory. Also prints the growth of the process's private memory, which includes the permutation of
an epoch. The pages of the new shard are in the system's cache.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

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
    """MB of this process that are not pages of a file."""
    memory = psutil.Process().memory_info()
    return (memory.rss - memory.shared) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000_000, help="length of the shard (default: %(default)s)")
    parser.add_argument("--context-length", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=500, help="batches per repeat")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shard = write_shard(Path(folder) / "train.bin", arguments.tokens)
        for order in ORDERS:
            before = private_memory()
            batches = Batches(shard, arguments.context_length, arguments.batch_size, order, seed=0)
            batches[0]
            speeds = []
            for repeat in range(arguments.repeats):
                started = time.perf_counter()
                for iteration in range(repeat * arguments.iterations, (repeat + 1) * arguments.iterations):
                    inputs, _ = batches[iteration]
                speeds.append(arguments.iterations * inputs.numel() / (time.perf_counter() - started))
            speed = statistics.median(speeds)
            print(f"{order:<11} {speed / 1e6:6.1f} M tokens/s, {speed / CONSUMED:.0f} times 100 000", end=" ")
            print(f"(from {min(speeds) / CONSUMED:.0f} to {max(speeds) / CONSUMED:.0f}),", end=" ")
            print(f"shard {shard.nbytes / 1e6:.0f} MB, memory + {private_memory() - before:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
