"""Saving and loading a state of the paper's size, weights and optimizer, against plain file I/O of the same bytes.

    python tests/benchmarks/bench_checkpoint.py [--folder FOLDER] [--repeats 8]

Both write to the same folder and wait for the disk (fsync); both read the file that they wrote. They alternate,
and so does their order, because the second one finds memory that was just freed. Printed are median speeds, the
geometric mean of the ratios of all repeats and, separately, the SHA-256 of the file, which saving and loading do
not compute. Aim: at most 1.5.
"""

import argparse
import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

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


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def alternate(ours: Callable, plain: Callable, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of both; each is the first one in every other repeat."""
    times = {ours: [], plain: []}
    for repeat in range(repeats):
        for call in (ours, plain) if repeat % 2 else (plain, ours):
            times[call].append(seconds(call))
    return times[ours], times[plain]


def report(name: str, ours: list[float], plain: list[float], size: int) -> None:
    ratios = [a / b for a, b in zip(ours, plain, strict=True)]
    speeds = " against ".join(f"{size / statistics.median(times) / 1e9:.2f}" for times in (ours, plain))
    print(f"{name}: {speeds} GB/s, ratio {statistics.geometric_mean(ratios):.2f}", end=" ")
    print(f"(from {min(ratios):.2f} to {max(ratios):.2f}), aim 1.5", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="where to write (default: the system's temporary folder)")
    parser.add_argument("--repeats", type=int, default=8)
    arguments = parser.parse_args()
    state, identity, repeats = paper_state(), {"seed": 1}, arguments.repeats
    header = Header("partial", 1, 5120, identity, {})
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        path, plain = Path(name) / "checkpoint.safetensors", Path(name) / "plain"
        checkpoints.save(path, state, header)
        content = memoryview(read_plain(path))
        size = len(content)
        print(f"{len(state)} tensors, {size / 1e9:.2f} GB, {repeats} repeats")
        write_plain(plain, content)
        save = alternate(lambda: checkpoints.save(path, state, header), lambda: write_plain(plain, content), repeats)
        report("save against write and fsync", *save, size)
        load = alternate(lambda: load_into_memory(path, identity), lambda: read_plain(plain), repeats)
        report("load against read", *load, size)
        digest = seconds(lambda: hashlib.sha256(content).digest())
        print(f"SHA-256 of the file, part of neither: {size / digest / 1e9:.2f} GB/s")


if __name__ == "__main__":
    main()
