"""Saving and loading a state of the paper's size, weights and optimizer, against plain file I/O of the same bytes.

    python tests/benchmarks/bench_checkpoint.py [--folder FOLDER] [--repeats 8]

Both write to the same folder and wait for the disk (fsync); both read the file that they wrote. They alternate,
and so does their order, because the second one finds memory that was just freed. Printed are median speeds, the
geometric mean of the ratios of all repeats and, separately, the SHA-256 of the file, which saving and loading do
not compute. Aim: at most 1.5.
"""

import hashlib
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from common import medians, options, seconds, turns

from twoscale import config
from twoscale.model import checkpoints
from twoscale.model.checkpoints import Header
from twoscale.model.transformer import LoopedTransformer
from twoscale.training.state import MOMENTS

CHUNK = 2**24  # bytes per call of plain I/O


def paper_state() -> dict[str, torch.Tensor]:
    """Random tensors with the names and shapes of the paper's weights and their moments."""
    with torch.device("meta"):
        model = LoopedTransformer(config.checked(config.preset("paper")).model)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    names = [(f"weights/{name}", shape) for name, shape in shapes.items()]
    names += [(f"optimizer/{name}.{moment}", shape) for name, shape in shapes.items() for moment in MOMENTS]
    return {name: torch.randn(shape) for name, shape in names}


def write_plain(path: Path, content: memoryview) -> None:
    """Write a new file that replaces the old one, so that memory for its pages is part of the cost."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb", buffering=0) as file:
        for start in range(0, len(content), CHUNK):
            file.write(content[start : start + CHUNK])
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_plain(path: Path) -> bytearray:
    content = bytearray(path.stat().st_size)
    with path.open("rb", buffering=0) as file:
        for start in range(0, len(content), CHUNK):
            file.readinto(memoryview(content)[start : start + CHUNK])
    return content


def load_into_memory(path: Path, identity: dict) -> None:
    """Read and copy every tensor; `load` alone maps the file and reads nothing yet."""
    tensors, _ = checkpoints.load(path, "partial", identity)
    for name in list(tensors):
        tensors[name] = tensors[name].clone()


def compare(name: str, ours: Callable[[], object], plain: Callable[[], object], repeats: int, size: int) -> None:
    rows = turns([ours, plain], repeats, warm_up=0)
    speeds = " against ".join(f"{size / median / 1e9:.2f}" for median in medians(rows))
    ratios = [a / b for a, b in rows]
    print(f"{name}: {speeds} GB/s, ratio {statistics.geometric_mean(ratios):.2f}", end=" ")
    print(f"(from {min(ratios):.2f} to {max(ratios):.2f}), aim 1.5", flush=True)


def main() -> None:
    arguments = options(__doc__, folder=None, repeats=8)
    state, identity, repeats = paper_state(), {"seed": 1}, arguments.repeats
    header = Header("partial", 1, 5120, identity, {})
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        path, plain = Path(name) / "checkpoint.safetensors", Path(name) / "plain"
        checkpoints.save(path, state, header)
        content = memoryview(read_plain(path))
        size = len(content)
        print(f"{len(state)} tensors, {size / 1e9:.2f} GB, {repeats} repeats")
        write_plain(plain, content)
        save, write = lambda: checkpoints.save(path, state, header), lambda: write_plain(plain, content)
        compare("save against write and fsync", save, write, repeats, size)
        load, read = lambda: load_into_memory(path, identity), lambda: read_plain(plain)
        compare("load against read", load, read, repeats, size)
        digest = seconds(lambda: hashlib.sha256(content).digest())
        print(f"SHA-256 of the file, part of neither: {size / digest / 1e9:.2f} GB/s")


if __name__ == "__main__":
    main()
