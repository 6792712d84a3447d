"""What measuring costs: extracting the trajectories of a checkpoint against the bare looped forward pass.

    python tests/benchmarks/bench_extraction.py [--preset demo] [--device cpu]

Both run the same held-out blocks at the same budget in the same precision, in turns; the extraction measures
every state and writes all its tables, the forward pass walks through the loops and does not even decode. Aim: at
most 1.35. The peak memory of the extraction is printed for one and for four times as many tokens: it belongs to
one batch.
"""

import argparse
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from twoscale import config
from twoscale.dynamics.trajectories import TABLES, extract
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import initialise


def seconds(run, synchronise) -> float:
    synchronise()
    started = time.perf_counter()
    run()
    synchronise()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="demo", help="file of workflow/presets/")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    (chosen,) = config.runs({"preset": arguments.preset}).values()
    model = initialise(chosen.model, 0).to(arguments.device, getattr(torch, chosen.trajectories.dtype))
    model.requires_grad_(False)
    budget, batch, block = chosen.trajectories.loops, chosen.trajectories.batch_size, chosen.model.context_length
    blocks = torch.randint(chosen.model.vocab_size, (arguments.sequences, block))

    @torch.no_grad()
    def walk() -> None:
        for start in range(0, len(blocks), batch):
            tokens = blocks[start : start + batch].to(arguments.device)
            noise = EvaluationNoise(0, range(start, start + len(tokens)), block)
            for _ in model.walk(tokens, [budget] * len(model.groups), noise):
                pass

    def measured(tokens: torch.Tensor) -> None:
        with tempfile.TemporaryDirectory() as folder:
            outputs = {table: Path(folder) / f"{table}.parquet" for table in TABLES}
            extract(model, tokens, 0, 0, chosen.trajectories, chosen.path_types, outputs)

    synchronise = torch.cuda.synchronize if arguments.device == "cuda" else (lambda: None)
    runs = (lambda: measured(blocks), walk)
    for run in runs:
        run()  # warm up
    pairs = [[seconds(run, synchronise) for run in runs] for _ in range(arguments.repeats)]
    ratios = [ours / floor for ours, floor in pairs]
    ours, floor = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"{arguments.device}, preset {arguments.preset}, {blocks.numel()} tokens, {budget} loops a group")
    print(f"extraction {ours:.2f} s against {floor:.2f} s bare, ratio {statistics.median(ratios):.3f}", end=" ")
    print(f"(from {min(ratios):.2f} to {max(ratios):.2f})")
    before = peak_memory(arguments.device)
    measured(blocks.repeat(4, 1))
    after = peak_memory(arguments.device)
    print(f"peak memory {before:.0f} MB; with four times as many tokens {after:.0f} MB")


def peak_memory(device: str) -> float:
    """Of the process on the host (Linux), or of its tensors on the GPU; MB."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    main()
