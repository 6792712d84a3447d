"""Saving and loading a paper-size state, weights and optimizer, against plain file I/O of the same bytes.

    python tests/benchmarks/bench_checkpoint.py [--folder FOLDER] [--repeats 8]

Both ways write to the same folder and wait for the disk (fsync), and both read what they have just written.
They run in turns and change places every turn, because whoever comes second finds memory that was just freed;
printed are median speeds, the geometric mean of the turns' ratios and, apart, the SHA-256 of the file, which
saving and loading leave out. Aim: at most 1.5.
"""

import argparse
import hashlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from twoscale import config
from twoscale.model import checkpoints
from twoscale.model.checkpoints import Header
from twoscale.model.transformer import LoopedTransformer
from twoscale.training.trainer import MOMENTS

PIECE = 2**24  # bytes a call of plain I/O moves


def paper_state() -> dict[str, torch.Tensor]:
    """Random tensors of the names and shapes of the paper's weights and their moments."""
    with torch.device("meta"):
        made = LoopedTransformer(config.runs({"preset": "paper"})["paper"].model)
    shapes = {name: parameter.shape for name, parameter in made.named_parameters()}
    names = [(f"weights/{name}", shape) for name, shape in shapes.items()]
    names += [(f"optimizer/{name}.{moment}", shape) for name, shape in shapes.items() for moment in MOMENTS]
    return {name: torch.randn(shape) for name, shape in names}


def write_plainly(path: Path, content: memoryview) -> None:
    """To a new file that takes the place of the old one: memory for its pages is part of the cost."""
    beside = path.with_suffix(".tmp")
    with beside.open("wb", buffering=0) as file:
        for start in range(0, len(content), PIECE):
            file.write(content[start : start + PIECE])
        os.fsync(file.fileno())
    os.replace(beside, path)


def read_plainly(path: Path) -> bytearray:
    content = bytearray(path.stat().st_size)
    with path.open("rb", buffering=0) as file:
        for start in range(0, len(content), PIECE):
            file.readinto(memoryview(content)[start : start + PIECE])
    return content


def load_into_memory(path: Path, identity: dict) -> None:
    """Every tensor read and copied; `load` alone maps the file and reads nothing yet."""
    tensors, _ = checkpoints.load(path, "partial", identity)
    for name in list(tensors):
        tensors[name] = tensors[name].clone()


def seconds(function) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def in_turns(ours, plain, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of both, each first in every other turn."""
    times = {ours: [], plain: []}
    for turn in range(repeats):
        for function in (ours, plain) if turn % 2 else (plain, ours):
            times[function].append(seconds(function))
    return times[ours], times[plain]


def report(name: str, ours: list[float], plain: list[float], size: int) -> None:
    ratios = [a / b for a, b in zip(ours, plain, strict=True)]
    speeds = " against ".join(f"{size / statistics.median(times) / 1e9:.2f}" for times in (ours, plain))
    print(f"{name}: {speeds} GB/s, ratio {statistics.geometric_mean(ratios):.2f}", end=" ")
    print(f"(from {min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="where to write (default: the system's temporary folder)")
    parser.add_argument("--repeats", type=int, default=8)
    arguments = parser.parse_args()
    state, identity = paper_state(), {"seed": 1}
    header = Header("partial", 1, 5120, identity, {})
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        path, plain = Path(name) / "checkpoint.safetensors", Path(name) / "plain"
        checkpoints.save(path, state, header)
        content = memoryview(read_plainly(path))
        size = len(content)
        print(f"{len(state)} tensors, {size / 1e9:.2f} GB, {arguments.repeats} repeats")
        write_plainly(plain, content)
        save = in_turns(
            lambda: checkpoints.save(path, state, header), lambda: write_plainly(plain, content), arguments.repeats
        )
        report("save against write and fsync", *save, size)
        load = in_turns(lambda: load_into_memory(path, identity), lambda: read_plainly(plain), arguments.repeats)
        report("load against read", *load, size)
        digest = seconds(lambda: hashlib.sha256(content).digest())
        print(f"SHA-256 of the file: {size / digest / 1e9:.2f} GB/s, in neither")


if __name__ == "__main__":
    main()
