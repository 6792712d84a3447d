"""Config of text, downloads and tokens."""

from typing import Annotated, Literal

from pydantic import Field

from twoscale.config.identity import FILE_SOURCES
from twoscale.config.types import (
    AtLeastTwo,
    Count,
    Fraction,
    HomePath,
    Natural,
    NonNegative,
    Number,
    Positive,
    Section,
    key,
    require,
)

# Number of token ids of the tokenizers whose size is not configurable.
GPT2_VOCAB_SIZE = 50257
BYTES_VOCAB_SIZE = 257  # 256 bytes and the end of text


class DataConfig(Section):
    """Text to collect, and its split into training and held-out documents."""

    source: Literal["fineweb", "txt", "jsonl", "parquet", "python_docs"] = key(
        "fineweb",
        "Text source: FineWeb from the Hugging Face hub, local files (plain text, one document per file; JSON Lines "
        "with a field `text`, one document per line; parquet with a column `text`, one document per row), or the "
        "documentation of Python.",
        source="§2",
    )
    path: HomePath | None = key(
        None,
        "A file, or a folder with files of the type given by source: *.txt and *.txt.gz, *.jsonl and *.jsonl.gz, or "
        "*.parquet. Files are read in the order of their paths. Required for source: txt, jsonl and parquet.",
    )
    piece_characters: Count | None = key(
        8_000,
        "Local files: documents longer than ten times this number of characters, such as novels, are split into "
        "pieces of at most this length, at blank lines if possible. Each piece then counts as a document. null: "
        "documents are not split.",
    )
    repository: str = key("HuggingFaceFW/fineweb", "Hub repository for source: fineweb.", source="§2")
    subset: str = key("sample-10BT", "Subset of the repository; 300 M tokens are 3 % of the default subset.")
    revision: str = key(
        "cd850543a88ba055067841ce91d2669344ff7b7a", "Commit of the repository. The default commit contains sample/10BT."
    )
    train_characters: Count | None = key(
        1_500_000_000, "Characters of training text to collect for a tokenizer other than gpt2. null: no limit."
    )
    train_tokens: Count | None = key(
        300_000_000, "Tokens of training text to collect for the gpt2 tokenizer. null: no limit.", source="App. B"
    )
    held_out_tokens: Count = key(
        1_000_000, "Number of held-out tokens, taken from the start of the remaining held-out documents."
    )
    held_out_margin: Annotated[float, Field(ge=1), Number] = key(
        1.5,
        "Held-out text to collect, as a multiple of held_out_tokens, because near-duplicates of training text are "
        "dropped.",
    )
    held_out_fraction: Fraction = key(
        0.005,
        "Fraction of documents to hold out, selected by a hash of the document, or of its top-level module for "
        "source: python_docs.",
    )
    near_duplicate_tokens: AtLeastTwo = key(
        32,
        "A held-out document is dropped if this many of its consecutive tokens also occur consecutively in the "
        "training text. Use about 150 for the tokenizer bytes.",
    )
    text_shards: Annotated[int, Field(ge=1, le=999), Number] = key(8, "Number of parquet files for the text.")

    def check_keys(self) -> None:
        reason = f"a file or a folder of files, because data.source is {self.source!r}"
        require(self.path or self.source not in FILE_SOURCES, "data.path", "nothing", reason)
        unread = f"nothing, because data.source is {self.source!r}, which reads no files"
        require(self.path is None or self.source in FILE_SOURCES, "data.path", self.path, unread)


class DownloadConfig(Section):
    """Downloads of text, published models and released tables. These keys do not affect the results."""

    retries: Natural = key(
        10,
        "Number of retries at the Hugging Face hub after its client has given up, which itself retries and waits as "
        "long as the hub requests.",
    )
    delay: NonNegative = key(1.0, "Seconds before the first retry. The delay doubles with each retry, up to a minute.")
    timeout: Positive = key(
        30.0,
        "Seconds without data after which a download of released tables fails. For the hub, set the shell variable "
        "HF_HUB_DOWNLOAD_TIMEOUT.",
    )
    part_characters: Count = key(16_000_000, "Characters per part. An interrupted download loses at most one part.")


class TokenizerConfig(Section):
    """Tokenizer of the text."""

    name: Literal["gpt2", "bpe", "bytes", "published"] = key(
        "gpt2",
        "Tokenizer: gpt2, bpe (a BPE tokenizer trained on the text), bytes, or published (tokenizer.json of a "
        "published model).",
        source="nanoGPT",
    )
    vocab_size: Count = key(
        4096,
        "Vocabulary size for name: bpe, at least 258. For name: published, the number of rows of the model's "
        "embedding. Other tokenizers ignore it.",
    )

    @property
    def num_ids(self) -> int:
        """Number of token ids, including the end of text; for a published model, that of its embedding's rows."""
        return {"gpt2": GPT2_VOCAB_SIZE, "bytes": BYTES_VOCAB_SIZE}.get(self.name, self.vocab_size)

    def check_keys(self) -> None:
        enough = self.name == "published" or self.vocab_size > BYTES_VOCAB_SIZE
        require(enough, "tokenizer.vocab_size", self.vocab_size, f"a whole number >= {BYTES_VOCAB_SIZE + 1}")
