"""Extracting the trajectories of a checkpoint

    python tests/benchmarks/bench_extraction.py [--preset demo] [--device cpu]

The extraction measures every state and writes all its tables. The bare forward pass computes the states of the same
sequences without a readout. Peak memory depends on the size of a batch and does not grow with the text.
"""

import resource
import tempfile
from pathlib import Path

import torch
from common import clock_of, compare, options, record

from twoscale.config import runs
from twoscale.data.batches import HeldOut
from twoscale.dynamics.trajectories import TABLES, extract
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.transformer import initialise


def random_text(vocab_size: int, sequences: int, length: int) -> HeldOut:
    tokens, numbers = torch.randint(vocab_size, (sequences, length)), tuple(range(sequences))
    return HeldOut(tokens, tokens, numbers, numbers)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    smoke = {"preset": "tiny", "sequences": 2, "repeats": 2}
    arguments = options(__doc__, smoke, preset="demo", device=device, sequences=8, repeats=7, threads=1)
    torch.set_num_threads(arguments.threads)
    (config,) = runs({"preset": arguments.preset}).values()
    loops, batch_size = config.trajectories.loops, config.trajectories.batch_size
    model = initialise(config.model, 0).to(arguments.device, getattr(torch, config.trajectories.dtype))
    checkpoint = LoadedCheckpoint(model.requires_grad_(False), iteration=0, seed=0)
    text = random_text(config.model.vocab_size, arguments.sequences, config.model.context_length)

    @torch.no_grad()
    def forward() -> None:
        for batch in text.batches(batch_size):
            tokens, noise = batch.inputs.to(arguments.device), checkpoint.noise(batch.sequences)
            for _ in model.trace(tokens, [loops] * len(config.model.groups), noise):
                pass

    def extraction(text: HeldOut) -> None:
        with tempfile.TemporaryDirectory() as folder:
            outputs = {table: Path(folder) / f"{table}.parquet" for table in TABLES}
            extract(checkpoint, text, config.trajectories, config.path_types, outputs)

    clock = clock_of(arguments.device, threads=2)  # wall time: the extraction also writes
    compare("against the bare forward pass", lambda: extraction(text), forward, arguments.repeats, "≤ 1.35", clock)
    before = peak_memory(arguments.device)
    extraction(random_text(config.model.vocab_size, 4 * len(text), config.model.context_length))
    record("peak memory of four times as many tokens against it", [peak_memory(arguments.device) / before])


def peak_memory(device: str) -> float:
    """Of the process on the host (Linux), or of its tensors on the GPU; MB."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    main()
