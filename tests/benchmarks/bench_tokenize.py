"""Tokenizing

    python tests/benchmarks/bench_tokenize.py [--parquet FILE_OR_FOLDER]

`tokenize_text` reads, tokenizes, hashes and writes one text shard. It is compared with tiktoken's batch call, on one
thread, for documents in memory. The tokenizer is GPT-2's if it is available, and otherwise byte-level.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
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


def write_shard(parquet: str | None, characters: int, folder: Path) -> Path:
    """The text as in a run."""
    shard, quota = folder / "text/shard.parquet", TextQuota("characters", characters, 2**62)
    prepare_text(data_config(parquet), quota, [shard], folder / "parts", DownloadConfig())
    return shard


def token_shard(folder: Path, name: str) -> TokenShard:
    return TokenShard(*(folder / f"{name}.{end}" for end in ("train.bin", "val.bin", "json")))


def job(shard: Path, tokenizer: tuple[str, Path | None], to: TokenShard) -> list:
    """Command of the rule tokenize_text."""
    name, path = tokenizer
    command = [sys.executable, SCRIPTS / "tokenize_text.py", "--config", json.dumps({"tokenizer": name})]
    command += ["--tokenizer", path] if path else []
    return [*command, "--text", shard, "--train", to.train, "--val", to.val, "--metadata", to.metadata]


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
    smoke = {"characters": 10_000, "repeats": 1}
    arguments = options(__doc__, smoke, parquet=None, characters=8_000_000, repeats=7, times=20)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer_file = ("bytes", None) if arguments.smoke else best_tokenizer(folder)
        shard = write_shard(arguments.parquet, arguments.characters, folder)
        compare_with_tiktoken(shard, tokenizer_file, folder, arguments.repeats)
        measure_memory(shard, tokenizer_file, folder, arguments.times)


if __name__ == "__main__":
    main()
