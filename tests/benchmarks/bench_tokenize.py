"""Tokenizing

    python tests/benchmarks/bench_tokenize.py [--parquet FILE_OR_FOLDER]

`tokenize_text` reads, tokenizes, hashes and writes one text shard. It is compared with tiktoken's batch call, on one
thread, for documents in memory. Then two jobs run on two shards, in parallel and in sequence. The tokenizer is GPT-2's
if it is available, and otherwise byte-level.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path

from common import options, ratios, record, turns

from twoscale import tables
from twoscale.base import InputError
from twoscale.config import DataConfig, DownloadConfig, TextQuota, plain
from twoscale.data.ingestion import prepare_text
from twoscale.data.shards import TokenShard
from twoscale.data.text import iter_shards
from twoscale.data.tokenizer import fetch_gpt2, load_tokenizer
from twoscale.data.tokens import tokenize_text

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def best_tokenizer(folder: Path) -> tuple[str, Path | None]:
    """Name and file of GPT-2's tokenizer if it is available, otherwise of bytes."""
    path = folder / "gpt2.tiktoken"
    try:
        path.write_bytes(fetch_gpt2())
    except InputError:
        return "bytes", None
    return "gpt2", path


def data_config(parquet: str | None) -> DataConfig:
    return DataConfig(source="parquet" if parquet else "python_docs", path=parquet, held_out_fraction=0.02)


def write_shards(parquet: str | None, characters: int, folder: Path, count: int) -> list[Path]:
    """The text as in a run."""
    shards = [folder / f"text/shard_{number}.parquet" for number in range(count)]
    quota = TextQuota("characters", characters, 2**62)
    prepare_text(data_config(parquet), quota, shards, folder / "parts", DownloadConfig())
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
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return int(finished.stdout) / 1e3


def compare_with_tiktoken(shard: Path, tokenizer_file: tuple[str, Path | None], folder: Path, repeats: int) -> None:
    tokenizer = load_tokenizer(*tokenizer_file)
    texts = [text for _, texts in iter_shards([shard]) for text in texts]

    def alone() -> int:
        return sum(map(len, tokenizer.encoding.encode_ordinary_batch(texts, num_threads=1)))

    rows = turns([alone, lambda: tokenize_text(shard, tokenizer, token_shard(folder, "alone"))], repeats)
    record("a job against tiktoken, tokens per second", ratios(rows), aim="≥ 0.85")


def compare_two_jobs(
    shards: list[Path], tokenizer_file: tuple[str, Path | None], folder: Path, repeats: int, loops: int
) -> None:
    jobs = [job(shard, tokenizer_file, token_shard(folder, shard.stem)) for shard in shards]
    empty = [[sys.executable, "-c", f"for _ in range({loops}): pass"]] * 2
    for name, commands, aim in (("jobs", jobs, "≥ 1.6"), ("empty loops", empty, "")):
        sequence, parallel = (partial(run_jobs, commands, together) for together in (False, True))
        rows = turns([sequence, parallel], repeats, warm_up=0)
        record(f"two {name} in parallel against in sequence", ratios(rows), aim=aim)


def repeated(shard: Path, times: int, path: Path) -> Path:
    """The rows of a shard `times` times, each copy of a document with another text."""
    with tables.writing("text", path) as append:
        for copy in range(times):
            for held_out, texts in iter_shards([shard]):
                columns = {"document": [str(copy)] * len(texts), "held_out": held_out}
                append(columns | {"text": [f"{copy} {text}" for text in texts]})
    return path


def measure_memory(shard: Path, tokenizer_file: tuple[str, Path | None], folder: Path, times: int) -> None:
    source = repeated(shard, times, folder / "repeated.parquet")
    name, path = tokenizer_file
    quota = TextQuota("tokens" if name == "gpt2" else "characters", 2**62, 2**62)
    collecting = [sys.executable, SCRIPTS / "prepare_text.py"]
    collecting += ["--config", json.dumps({"data": plain(data_config(str(source))), "quota": asdict(quota)})]
    collecting += ["--download", json.dumps({"download": plain(DownloadConfig())}), "--parts", folder / "memory_parts"]
    collecting += ["--text", folder / "memory_0.parquet", folder / "memory_1.parquet"]
    collecting += ["--tokenizer", path] if path else []
    commands = {"collecting": collecting, "tokenizing": job(source, tokenizer_file, token_shard(folder, "m"))}
    for name, command in commands.items():
        record(f"peak memory of {name}", [peak_memory(command) / 1e3], "GB", "≤ 1 GB")


def main() -> None:
    smoke = {"characters": 20_000, "repeats": 1, "empty": 1, "times": 20}
    full = {"characters": 16_000_000, "repeats": 7, "empty": 50_000_000, "times": 20}
    arguments = options(__doc__, smoke, parquet=None, **full)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer_file = ("bytes", None) if arguments.smoke else best_tokenizer(folder)
        shards = write_shards(arguments.parquet, arguments.characters, folder, 2)
        compare_with_tiktoken(shards[0], tokenizer_file, folder, arguments.repeats)
        compare_two_jobs(shards, tokenizer_file, folder, arguments.repeats, arguments.empty)
        measure_memory(shards[0], tokenizer_file, folder, arguments.times)


if __name__ == "__main__":
    main()
