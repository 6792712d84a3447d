"""How much of tiktoken's speed is left when text goes from parquet shards to token shards.

    python tests/benchmarks/bench_tokenize.py [--parquet FOLDER]

Two ways of encoding one text are timed in turns: `tokenize_text`, reading, hashing and writing included,
and tiktoken's batch call on lists of documents that are in memory already. Printed are the medians and the
ratio of the speeds; the project aims at 0.85 or more.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from twoscale.errors import InputError
from twoscale.settings import Data
from twoscale.text import prepare_text, stored
from twoscale.tokens import Tokenizer, byte_level, gpt2, tokenize_text


def write_shards(parquet: str | None, characters: int, folder: Path) -> list[Path]:
    """The text as a run would have it, in two shards."""
    source = "parquet" if parquet else "python_docs"
    shards = [folder / f"shard_{number}.parquet" for number in range(2)]
    prepare_text(Data(source, parquet, "", "", "", characters, len(shards), held_out_fraction=0.02), shards)
    return shards


def best_tokenizer() -> Tokenizer:
    """GPT-2's where it is at hand, else bytes."""
    try:
        return gpt2()
    except InputError:
        return byte_level()


def encode_bare(tokenizer: Tokenizer, batches: list[list[str]]) -> int:
    """Number of tokens, from tiktoken's batch call and nothing else."""
    return sum(len(ids) for batch in batches for ids in tokenizer.encoding.encode_ordinary_batch(batch))


def encode_to_shards(tokenizer: Tokenizer, shards: list[Path], folder: Path) -> None:
    outputs = (folder / "train.bin", folder / "val.bin", folder / "tokens.json")
    tokenize_text(shards, tokenizer, *outputs, held_out_tokens=2**62, block=1)


def seconds(function, *arguments) -> float:
    started = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parquet", help="parquet file or folder to take the text from (default: Python's docs)")
    parser.add_argument("--characters", type=int, default=20_000_000, help="text to encode (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    tokenizer = best_tokenizer()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shards = write_shards(arguments.parquet, arguments.characters, folder)
        batches = [texts for _, texts in stored(shards)]
        tokens = encode_bare(tokenizer, batches)  # also warms the caches
        ours, bare = [], []
        for _ in range(arguments.repeats):
            bare.append(seconds(encode_bare, tokenizer, batches))
            ours.append(seconds(encode_to_shards, tokenizer, shards, folder))
    ratios = [b / o for b, o in zip(bare, ours, strict=True)]
    print(f"tokenizer {tokenizer.name}, {sum(map(len, batches))} documents, {tokens} tokens, {len(ratios)} repeats")
    print(f"tiktoken alone  {tokens / statistics.median(bare) / 1e6:6.2f} M tokens/s")
    print(f"tokenize_text   {tokens / statistics.median(ours) / 1e6:6.2f} M tokens/s")
    print(f"ratio           {statistics.median(ratios):6.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
