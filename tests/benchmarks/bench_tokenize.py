"""How fast text becomes tokens: against tiktoken alone, one job a core, and in how much memory.

    python tests/benchmarks/bench_tokenize.py [--parquet FILE_OR_FOLDER]

1. `tokenize_text` on one text shard, reading, hashing and writing included, against tiktoken's batch call on
   one thread, on lists of documents that are in memory already. Aim: at least 0.85 of its speed.
2. Two `tokenize_text` jobs on two shards, side by side against one after the other, and two empty loops, which
   share nothing and show what the machine has to give. Aim: at least 1.6 times.
3. Peak memory of collecting and of tokenizing the text once and ten times over. Aim: below 1 GB, and the same.

What is compared is timed in turns. The first pair is timed in seconds of a core and compared at its fastest,
which other work on the machine disturbs least; the second in seconds on the clock, so it wants two free cores.
GPT-2's tokenizer is used where TIKTOKEN_CACHE_DIR or the network has it, else bytes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from twoscale.data.tokens import TokenShard, load_tokenizer, tokenize_text

from twoscale import tables
from twoscale.config import Budget, Data, Download
from twoscale.data import gpt2
from twoscale.data.ingestion import prepare_text
from twoscale.errors import InputError

SCRIPTS = Path(sys.path[0])
DOWNLOAD = Download(retries=1, delay=1.0, max_delay=1.0, timeout=10.0, part_characters=16_000_000)


def best_tokenizer(folder: Path) -> tuple[str, Path | None]:
    """Name and file of GPT-2's where it is at hand, else of bytes."""
    path = folder / "gpt2.tiktoken"
    try:
        path.write_bytes(gpt2.fetch(DOWNLOAD))
    except InputError:
        return "bytes", None
    return "gpt2", path


def write_shards(parquet: str | None, characters: int, folder: Path, count: int) -> list[Path]:
    """The text as a run would have it."""
    shards = [folder / f"text/shard_{number}.parquet" for number in range(count)]
    data = Data("parquet" if parquet else "python_docs", parquet, "", "", "", None, count, 0.02, None)
    prepare_text(data, Budget("characters", characters, 2**62), shards, folder / "parts", DOWNLOAD)
    return shards


def piece(folder: Path, name: str) -> TokenShard:
    return TokenShard(*(folder / f"{name}.{end}" for end in ("train.bin", "val.bin", "json")))


def seconds(function, *arguments, clock=time.perf_counter) -> float:
    started = clock()
    function(*arguments)
    return clock() - started


def job(shard: Path, tokenizer: tuple[str, Path | None], to: TokenShard) -> list:
    """Command of the rule tokenize_text."""
    name, path = tokenizer
    command = [sys.executable, SCRIPTS / "tokenize_text.py", "--config", json.dumps({"tokenizer": name})]
    command += ["--tokenizer", path] if path else []
    return [*command, "--text", shard, "--train", to.train, "--val", to.val, "--metadata", to.metadata]


def run_jobs(jobs: list[list], side_by_side: bool) -> None:
    running = []
    for command in jobs:
        running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        if not side_by_side:
            running[-1].wait()
    if any(process.wait() for process in running):
        raise SystemExit("a job failed")


# Runs a script, then says the high-water mark of its memory; that of wait4 would include this process before exec.
WATCHED = """
import re, runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
print(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])
"""


def peak_memory(command: list) -> float:
    """Peak resident memory in MB of a Python script and its arguments."""
    watched = [sys.executable, "-c", WATCHED, *command[1:]]
    done = subprocess.run(watched, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return int(done.stdout) / 1e3


def compare_with_tiktoken(shard: Path, chosen: tuple[str, Path | None], folder: Path, repeats: int) -> None:
    tokenizer = load_tokenizer(*chosen)
    texts = [text for _, texts in stored([shard]) for text in texts]

    def alone() -> int:
        return sum(map(len, tokenizer.encoding.encode_ordinary_batch(texts, num_threads=1)))

    tokens = alone()  # also warms the caches
    pairs = [(seconds(alone), seconds(tokenize_text, shard, tokenizer, piece(folder, "alone"))) for _ in range(repeats)]
    bare, ours = (min(times) for times in zip(*pairs, strict=True))
    median = statistics.median(bare / ours for bare, ours in pairs)
    print(f"tokenizer {tokenizer.name}, {len(texts)} documents, {tokens} tokens, one thread, {repeats} repeats")
    print(f"tiktoken alone    {tokens / bare / 1e6:6.2f} M tokens/s a core, at its fastest")
    print(f"tokenize_text     {tokens / ours / 1e6:6.2f} M tokens/s a core, at its fastest")
    print(f"ratio             {bare / ours:6.2f} (median of the pairs {median:.2f})", flush=True)


def compare_two_jobs(shards: list[Path], chosen: tuple[str, Path | None], folder: Path, repeats: int) -> None:
    jobs = [job(shard, chosen, piece(folder, shard.stem)) for shard in shards]
    loops = [[sys.executable, "-c", "for _ in range(50_000_000): pass"]] * 2
    ratios: dict[str, list[float]] = {"tokenize_text": [], "empty loops": []}
    for _ in range(repeats):
        for name, commands in (("tokenize_text", jobs), ("empty loops", loops)):
            ratios[name].append(seconds(run_jobs, commands, False) / seconds(run_jobs, commands, True))
    for name, found in ratios.items():
        print(f"two jobs of {name} side by side: {statistics.median(found):.2f} times as fast as in turn", end=" ")
        print(f"(from {min(found):.2f} to {max(found):.2f}; load average {os.getloadavg()[0]:.1f})", flush=True)


def repeated(shard: Path, times: int, path: Path) -> Path:
    """The rows of a shard several times over, each document made different."""
    with tables.writing("text", path) as append:
        for copy in range(times):
            for held_out, texts in stored([shard]):
                append(
                    {
                        "document": [str(copy)] * len(texts),
                        "held_out": held_out,
                        "text": [f"{copy} {text}" for text in texts],
                    }
                )
    return path


def characters(shard: Path) -> int:
    return sum(len(text) for _, texts in stored([shard]) for text in texts)


def measure_memory(shard: Path, chosen: tuple[str, Path | None], folder: Path) -> None:
    for times in (2, 20):  # the smaller one already fills a part
        source = repeated(shard, times, folder / f"times_{times}.parquet")
        tokenizing = peak_memory(job(source, chosen, piece(folder, "memory")))
        name, path = chosen
        data = Data("parquet", str(source), "", "", "", None, 2, 0.02, None)
        budget = Budget("tokens" if name == "gpt2" else "characters", 2**62, 2**62)
        command = [sys.executable, SCRIPTS / "prepare_text.py"]
        command += ["--config", json.dumps({"data": vars(data), "budget": vars(budget)})]
        command += ["--download", json.dumps(vars(DOWNLOAD)), "--parts", folder / "memory_parts"]
        command += ["--output", folder / "memory_0.parquet", folder / "memory_1.parquet"]
        collecting = peak_memory(command + (["--tokenizer", path] if path else []))
        print(f"{times * characters(shard) / 1e6:.0f} M characters:", end=" ")
        print(f"collecting takes {collecting:.0f} MB at its peak, tokenizing {tokenizing:.0f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parquet", help="parquet file or folder to take the text from (default: Python's docs)")
    parser.add_argument("--characters", type=int, default=16_000_000, help="text to encode (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = best_tokenizer(folder)
        shards = write_shards(arguments.parquet, arguments.characters, folder, 2)
        compare_with_tiktoken(shards[0], chosen, folder, arguments.repeats)
        compare_two_jobs(shards, chosen, folder, arguments.repeats)
        measure_memory(shards[0], chosen, folder)


if __name__ == "__main__":
    main()
