"""Searching training tokens for held-out near-duplicates

    python tests/benchmarks/bench_near_duplicates.py [--training 30000000] [--held-out 1500000]

The tokens are random ids: 30 M for training and 1.5 M held out, with planted copies in 1 % of the held-out documents.
`join_tokens` runs this search twice, and reads and hashes the training file in any case. The search is compared with
this reading and hashing, in CPU time of one thread. Peak memory is measured in a separate process.
"""

import hashlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import options, ratios, record, turns

from twoscale.data.near_duplicates import HeldOutNgrams, drop_near_duplicates
from twoscale.data.tokens import token_chunks

END, VOCAB_SIZE, DOCUMENT = 50256, 50257, 700
PEAK = "import re; print(re.search(r'VmHWM:\\s*(\\d+) kB', open('/proc/self/status').read())[1])"


def random_ids(draw: np.random.Generator, tokens: int) -> np.ndarray:
    ids = draw.integers(VOCAB_SIZE - 1, size=tokens, dtype=np.uint16)
    ids[DOCUMENT - 1 :: DOCUMENT] = END
    return ids


def write_tokens(folder: Path, training: int, held_out: int, n: int) -> list[Path]:
    """Files of held-out and training ids, with a copied n-gram in every hundredth held-out document."""
    draw = np.random.default_rng(0)
    ids = {"val": random_ids(draw, held_out), "train": random_ids(draw, training)}
    for begin in range(0, held_out - DOCUMENT, 100 * DOCUMENT):
        at = int(draw.integers(training - n))
        ids["train"][at : at + n] = ids["val"][begin : begin + n]
    paths = [folder / "val.bin", folder / "train.bin"]
    for path, values in zip(paths, ids.values(), strict=True):
        values.tofile(path)
    return paths


def peak_memory(val: Path, train: Path, n: int) -> float:
    """Peak resident memory in MB of `drop_near_duplicates` in a process of its own."""
    code = f"import bench_near_duplicates as b; b.drop({str(val)!r}, {str(train)!r}, {n}); {PEAK}"
    here = Path(__file__).resolve().parent
    done = subprocess.run([sys.executable, "-c", code], cwd=here, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout.split()[-1]) / 1e3


def drop(val: str, train: str, n: int) -> str:
    held_out = np.fromfile(val, "<u2")
    return str(drop_near_duplicates(held_out, END, n, lambda: token_chunks([Path(train)], np.dtype("<u2")))[1])


def main() -> None:
    smoke = {"training": 20_000, "held_out": 2_000, "repeats": 2}
    arguments = options(__doc__, smoke, training=30_000_000, held_out=1_500_000, n=32, repeats=5)
    n, training = arguments.n, arguments.training
    with tempfile.TemporaryDirectory() as name:
        val, train = write_tokens(Path(name), training, arguments.held_out, n)
        held_out = np.fromfile(val, "<u2")

        def read() -> None:
            digest = hashlib.sha256()
            for ids in token_chunks([train], np.dtype("<u2")):
                digest.update(ids)

        def search() -> None:
            HeldOutNgrams(held_out, n).found_in(token_chunks([train], np.dtype("<u2")))

        rows = turns([search, read], arguments.repeats, time.thread_time, warm_up=0)
        print(drop(str(val), str(train), n))
        record("search against reading and hashing", ratios(rows))
        record("search of 100 M tokens", [times[0] / training * 1e8 for times in rows], "s", "≤ 5 s")
        whole = peak_memory(val, train, n)
        record("peak memory", [whole / 1e3], "GB", "≤ 0.5 GB")
        half = Path(name) / "half.bin"
        np.fromfile(train, "<u2", training // 2).tofile(half)
        record("peak memory against half of the training tokens", [whole / peak_memory(val, half, n)])


if __name__ == "__main__":
    main()
