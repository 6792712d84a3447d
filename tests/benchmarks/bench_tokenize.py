"""Speed and memory of tokenizing: compared with tiktoken alone, and with one job per core.

    python tests/benchmarks/bench_tokenize.py [--parquet FILE_OR_FOLDER]

1. `tokenize_text` on one text shard, including reading, hashing and writing, compared with tiktoken's batch call on one
   thread for documents in memory. Aim: at least 0.85 of its speed.
2. Two `tokenize_text` jobs on two shards, in parallel and in sequence, compared with two empty loops, which share
   nothing and show the limit of the machine. Aim: at least 1.6 times as fast in parallel.
3. Peak memory of collecting and of tokenizing the text once and ten times over. Aim: below 1 GB, and the same.

Measurements that are compared alternate. All times are wall times: the first measurement compares their minima, which
other work on the machine disturbs least, and the second needs two free cores. The tokenizer is GPT-2's if
TIKTOKEN_CACHE_DIR or the network has it, otherwise bytes.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path

from common import options, seconds, spread, turns

from twoscale import tables
from twoscale.config import DataConfig, DownloadConfig, TextQuota, plain
from twoscale.data import gpt2
from twoscale.data.ingestion import Collection, prepare_text
from twoscale.data.shards import tokenize_text
from twoscale.data.text import iter_shards
from twoscale.data.token_files import TokenShard
from twoscale.data.tokenizer import load_tokenizer
from twoscale.errors import InputError

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
DOWNLOAD = DownloadConfig(retries=1, delay=1.0, max_delay=1.0, timeout=10.0)


def best_tokenizer(folder: Path) -> tuple[str, Path | None]:
    """Name and file of GPT-2's tokenizer if it is available, otherwise of bytes."""
    path = folder / "gpt2.tiktoken"
    try:
        path.write_bytes(gpt2.fetch(DOWNLOAD))
    except InputError:
        return "bytes", None
    return "gpt2", path


def data_config(parquet: str | None) -> DataConfig:
    return DataConfig(source="parquet" if parquet else "python_docs", path=parquet, held_out_fraction=0.02)


def write_shards(parquet: str | None, characters: int, folder: Path, count: int) -> list[Path]:
    """The text as in a run."""
    shards = [folder / f"text/shard_{number}.parquet" for number in range(count)]
    quota = TextQuota("characters", characters, 2**62)
    prepare_text(data_config(parquet), quota, shards, Collection(folder / "parts", DOWNLOAD))
    return shards


def token_shard(folder: Path, name: str) -> TokenShard:
    return TokenShard(*(folder / f"{name}.{end}" for end in ("train.bin", "val.bin", "json")))


def job(shard: Path, tokenizer: tuple[str, Path | None], to: TokenShard) -> list:
    """Command of the rule tokenize_text."""
    name, path = tokenizer
    command = [sys.executable, SCRIPTS / "tokenize_text.py", "--config", json.dumps({"tokenizer": name})]
    command += ["--tokenizer", path] if path else []
    return [*command, "--text", shard, "--train", to.train, "--val", to.val, "--metadata", to.metadata]


def run_jobs(jobs: list[list], parallel: bool) -> None:
    running = []
    for command in jobs:
        running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        if not parallel:
            running[-1].wait()
    if any(process.wait() for process in running):
        raise SystemExit("a job failed")


# Runs a script, then prints the high-water mark of its memory. That of wait4 would include this process before exec.
WITH_PEAK = """
import re, runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
print(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])
"""


def peak_memory(command: list) -> float:
    """Peak resident memory in MB of a Python script and its arguments."""
    command = [sys.executable, "-c", WITH_PEAK, *command[1:]]
    finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return int(finished.stdout) / 1e3


def compare_with_tiktoken(shard: Path, tokenizer_file: tuple[str, Path | None], folder: Path, repeats: int) -> None:
    tokenizer = load_tokenizer(*tokenizer_file)
    texts = [text for _, texts in iter_shards([shard]) for text in texts]

    def alone() -> int:
        return sum(map(len, tokenizer.encoding.encode_ordinary_batch(texts, num_threads=1)))

    tokens = alone()  # also warms the caches
    pairs = turns([alone, lambda: tokenize_text(shard, tokenizer, token_shard(folder, "alone"))], repeats, warm_up=0)
    bare, ours = (min(times) for times in zip(*pairs, strict=True))
    median = statistics.median(bare / ours for bare, ours in pairs)
    print(f"tokenizer {tokenizer.name}, {len(texts)} documents, {tokens} tokens, one thread, {repeats} repeats")
    print(f"tiktoken alone    {tokens / bare / 1e6:6.2f} M tokens/s per core at the minimum")
    print(f"tokenize_text     {tokens / ours / 1e6:6.2f} M tokens/s per core at the minimum")
    print(f"ratio             {bare / ours:6.2f} (median of the pairs {median:.2f})", flush=True)


def compare_two_jobs(shards: list[Path], tokenizer_file: tuple[str, Path | None], folder: Path, repeats: int) -> None:
    jobs = [job(shard, tokenizer_file, token_shard(folder, shard.stem)) for shard in shards]
    loops = [[sys.executable, "-c", "for _ in range(50_000_000): pass"]] * 2
    ratios: dict[str, list[float]] = {"tokenize_text": [], "empty loops": []}
    for _ in range(repeats):
        for name, commands in (("tokenize_text", jobs), ("empty loops", loops)):
            sequence, parallel = (seconds(partial(run_jobs, commands, together)) for together in (False, True))
            ratios[name].append(sequence / parallel)
    for name, values in ratios.items():
        print(f"two jobs of {name}, times as fast in parallel as in sequence: {spread(values)}", end=", ")
        print(f"load average {os.getloadavg()[0]:.1f}", flush=True)


def repeated(shard: Path, times: int, path: Path) -> Path:
    """The rows of a shard `times` times, each copy of a document with another text."""
    with tables.writing("text", path) as append:
        for copy in range(times):
            for held_out, texts in iter_shards([shard]):
                append(
                    {
                        "document": [str(copy)] * len(texts),
                        "held_out": held_out,
                        "text": [f"{copy} {text}" for text in texts],
                    }
                )
    return path


def characters(shard: Path) -> int:
    return sum(len(text) for _, texts in iter_shards([shard]) for text in texts)


def measure_memory(shard: Path, tokenizer_file: tuple[str, Path | None], folder: Path) -> None:
    for times in (2, 20):  # the smaller one already fills a part
        source = repeated(shard, times, folder / f"times_{times}.parquet")
        tokenizing = peak_memory(job(source, tokenizer_file, token_shard(folder, "memory")))
        name, path = tokenizer_file
        quota = TextQuota("tokens" if name == "gpt2" else "characters", 2**62, 2**62)
        command = [sys.executable, SCRIPTS / "prepare_text.py"]
        command += ["--config", json.dumps({"data": plain(data_config(str(source))), "quota": asdict(quota)})]
        command += ["--download", json.dumps({"download": plain(DOWNLOAD)}), "--parts", folder / "memory_parts"]
        command += ["--text", folder / "memory_0.parquet", folder / "memory_1.parquet"]
        collecting = peak_memory(command + (["--tokenizer", path] if path else []))
        print(f"{times * characters(shard) / 1e6:.0f} M characters:", end=" ")
        print(f"collecting takes {collecting:.0f} MB at its peak, tokenizing {tokenizing:.0f} MB", flush=True)


def main() -> None:
    arguments = options(__doc__, parquet=None, characters=16_000_000, repeats=7)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer_file = best_tokenizer(folder)
        shards = write_shards(arguments.parquet, arguments.characters, folder, 2)
        compare_with_tiktoken(shards[0], tokenizer_file, folder, arguments.repeats)
        compare_two_jobs(shards, tokenizer_file, folder, arguments.repeats)
        measure_memory(shards[0], tokenizer_file, folder)


if __name__ == "__main__":
    main()
