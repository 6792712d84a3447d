"""Saving and loading a state against plain file I/O

    python tests/benchmarks/bench_checkpoint.py [--folder FOLDER] [--repeats 5]

The state consists of weights and moments of the paper's size, 1.5 GB. Both calls write to the same folder and wait for
the disk (fsync). Each call reads the file that it wrote, which is still in the system's page cache.
"""

import os
import tempfile
from pathlib import Path

import torch
from common import compare, options

from twoscale import config
from twoscale.model import checkpoints
from twoscale.model.checkpoints import Header
from twoscale.model.transformer import LoopedTransformer
from twoscale.training.state import MOMENTS

CHUNK = 2**24  # bytes per call of plain I/O


def random_state(preset: str) -> dict[str, torch.Tensor]:
    """Random tensors with the names and shapes of the weights of a preset and of their moments."""
    with torch.device("meta"):
        model = LoopedTransformer(config.checked(config.preset(preset)).model)
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


def main() -> None:
    arguments = options(__doc__, {"preset": "tiny", "repeats": 2}, folder=None, preset="paper", repeats=5)
    state, identity, repeats = random_state(arguments.preset), {"seed": 1}, arguments.repeats
    header = Header("partial", 1, 5120, identity, {})
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        path, plain = Path(name) / "checkpoint.safetensors", Path(name) / "plain"
        checkpoints.save(path, state, header)
        content = memoryview(read_plain(path))
        print(f"{len(state)} tensors, {len(content) / 1e9:.2f} GB")
        save, write = lambda: checkpoints.save(path, state, header), lambda: write_plain(plain, content)
        compare("saving against write and fsync", save, write, repeats, "≤ 1.5")
        compare(
            "loading against read",
            lambda: load_into_memory(path, identity),
            lambda: read_plain(plain),
            repeats,
            "≤ 1.5",
        )


if __name__ == "__main__":
    main()
