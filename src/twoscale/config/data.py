"""Config of text, downloads and tokens."""

import math
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import Field

from twoscale.base import one_line
from twoscale.config.types import (
    AtLeastTwo,
    Count,
    Flag,
    Fraction,
    HomePath,
    Natural,
    NonNegative,
    Number,
    Positive,
    Section,
    key,
    option,
    plain,
    require,
)

FILE_SOURCES = ("txt", "jsonl", "parquet")  # values of data.source that read data.path

# Keys of `data` that do not affect which text the source has and which documents are held out:
# those that limit how much text is collected, and the one that applies to tokens.
_QUOTA_KEYS = ("train_characters", "train_tokens", "held_out_tokens", "held_out_margin")
_TOKEN_KEYS = ("near_duplicate_tokens",)

# Characters to collect for one held-out token of a BPE tokenizer, whose tokens cannot be counted
# before it is trained: twice what GPT-2's tokenizer takes in English.
_CHARACTERS_PER_TOKEN = 9

# Number of token ids of the tokenizers whose size is not configurable.
GPT2_VOCAB_SIZE = 50257
BYTES_VOCAB_SIZE = 257  # 256 bytes and the end of text


class DataConfig(Section):
    """Text to collect, and its split into training and held-out documents."""

    source: Literal["fineweb", "txt", "jsonl", "parquet", "python_docs"] = key(
        "fineweb",
        "Text source: FineWeb from the Hugging Face hub, local files (plain text, one document per"
        " file; JSON Lines with a field `text`, one document per line; parquet with a column"
        " `text`, one document per row), or the documentation of Python.",
        source="§2",
    )
    path: HomePath | None = key(
        None,
        "A file, or a folder with files of the type given by source: *.txt and *.txt.gz, *.jsonl"
        " and *.jsonl.gz, or *.parquet. Files are read in the order of their paths, without hidden"
        " ones. Required for source: txt, jsonl and parquet.",
    )
    piece_characters: Count | None = key(
        8_000,
        "Local files: documents longer than ten times this number of characters, such as novels,"
        " are split into pieces of at most this length, at blank lines if possible. Each piece then"
        " counts as a document. null: documents are not split.",
    )
    repository: str = key(
        "HuggingFaceFW/fineweb", "Hub repository for source: fineweb.", source="§2"
    )
    subset: str = key(
        "sample-10BT", "Subset of the repository; 300 M tokens are 3 % of the default subset."
    )
    revision: str = key(
        "cd850543a88ba055067841ce91d2669344ff7b7a",
        "Commit of the repository. The default commit contains sample/10BT.",
    )
    train_characters: Count | None = key(
        1_500_000_000,
        "Characters of training text to collect for a tokenizer other than gpt2. null: no limit.",
    )
    train_tokens: Count | None = key(
        300_000_000,
        "Tokens of training text to collect for the gpt2 tokenizer. null: no limit.",
        source="App. B",
    )
    held_out_tokens: Count = key(
        1_000_000,
        "Number of held-out tokens, taken from the start of the remaining held-out documents.",
    )
    held_out_margin: Annotated[float, Field(ge=1), Number] = key(
        1.5,
        "Held-out text to collect, as a multiple of held_out_tokens, because near-duplicates of"
        " training text are dropped.",
    )
    held_out_fraction: Fraction = key(
        0.005,
        "Fraction of documents to hold out, selected by a hash of the document, or of its top-level"
        " module for source: python_docs.",
    )
    near_duplicate_tokens: AtLeastTwo = key(
        32,
        "A held-out document is dropped if this many of its consecutive tokens also occur"
        " consecutively in the training text. Use about 150 for the tokenizer bytes.",
    )
    text_shards: Annotated[int, Field(ge=1, le=999), Number] = key(
        8, "Number of parquet files for the text."
    )

    def check_keys(self) -> None:
        reads_files = self.source in FILE_SOURCES
        needed = "a file or a folder of files" if reads_files else "nothing"
        expected = f"{needed}, because data.source is {self.source!r}"
        require(reads_files == bool(self.path), "data.path", self.path or "nothing", expected)


class DownloadConfig(Section):
    """Downloads of text, published models and released tables. These keys do not affect the
    results.
    """

    retries: Natural = key(
        10,
        "Number of retries at the Hugging Face hub after its client has given up, which itself"
        " retries and waits as long as the hub requests.",
    )
    delay: NonNegative = key(
        1.0, "Seconds before the first retry. The delay doubles with each retry, up to a minute."
    )
    timeout: Positive = key(
        30.0,
        "Seconds without data after which a download of released tables fails. For the hub, set the"
        " shell variable HF_HUB_DOWNLOAD_TIMEOUT.",
    )
    part_characters: Count = key(
        16_000_000, "Characters per part. An interrupted download loses at most one part."
    )


class TokenizerConfig(Section):
    """Tokenizer of the text."""

    name: Literal["gpt2", "bpe", "bytes", "published"] = key(
        "gpt2",
        "Tokenizer: gpt2, bpe (a BPE tokenizer trained on the text), bytes, or published"
        " (tokenizer.json of a published model).",
        source="nanoGPT",
    )
    vocab_size: Count = key(
        4096,
        "Vocabulary size for name: bpe, at least 258. For name: published, the number of rows of"
        " the model's embedding. Other tokenizers ignore it.",
    )

    @property
    def num_ids(self) -> int:
        """Number of token ids, with the end of text; of a published model, its embedding's rows."""
        return {"gpt2": GPT2_VOCAB_SIZE, "bytes": BYTES_VOCAB_SIZE}.get(self.name, self.vocab_size)

    def check_keys(self) -> None:
        is_enough = self.name == "published" or self.vocab_size > BYTES_VOCAB_SIZE
        expected = f"more than the {BYTES_VOCAB_SIZE} ids of bytes"
        require(is_enough, "tokenizer.vocab_size", self.vocab_size, expected)


@dataclass(frozen=True)
class TextQuota:
    """How much training and held-out text to collect."""

    unit: str  # "tokens" or "characters"
    training: int | None  # None: no limit
    held_out: int | None


def text_quota(data: DataConfig, tokenizer: TokenizerConfig) -> TextQuota:
    """The quota: in tokens if the tokenizer exists before the text, otherwise in characters."""
    held_out = math.ceil(data.held_out_margin * data.held_out_tokens)
    if tokenizer.name == "published":  # nothing is trained
        return TextQuota("characters", 0, _CHARACTERS_PER_TOKEN * held_out)
    if tokenizer.name == "gpt2":
        return TextQuota("tokens", data.train_tokens, held_out)
    characters = {"bytes": 1, "bpe": _CHARACTERS_PER_TOKEN}[tokenizer.name]
    return TextQuota("characters", data.train_characters, characters * held_out)


def text_source(data: DataConfig) -> dict[str, Any]:
    """The section `data` with the keys that do not affect the text at their defaults."""
    unused = [*_QUOTA_KEYS, *_TOKEN_KEYS]
    if data.source not in FILE_SOURCES:
        unused.append("piece_characters")
    return plain(data) | {key: DataConfig.model_fields[key].default for key in unused}


def text_label(data: DataConfig) -> str:
    """Name of the text in figures and captions, one line of harmless characters."""
    if data.path is not None:  # of a source that reads files
        path = PurePath(data.path)
        return one_line(path.name if path.suffix else f"{data.source} files in {path.name}/")
    if data.source == "python_docs":
        return "Python documentation"
    return one_line(f"FineWeb {data.subset}")


class ComputeConfig(Section):
    """Hardware for all jobs that use torch."""

    device: Literal["cpu", "cuda"] = key(
        "cuda",
        "Device for all torch jobs. It determines the default training precision and whether jobs"
        " request a GPU.",
    )


class ExitGateTraining(Section):
    """Training of the exit gate with the model, as in Ouro's first stage (arXiv 2510.25741)."""

    entropy_weight: NonNegative = key(
        0.1,
        "Factor beta of the entropy of the exit distribution (in nats); their product is subtracted"
        " from the loss. Ouro starts with 0.1 and continues with 0.05. With 0 the distribution may"
        " collapse to one loop step.",
        source="arXiv 2510.25741",
    )


class TrainConfig(Section):
    """Training: schedule, batches, optimizer and held-out loss."""

    iterations: Annotated[int, Field(ge=1, le=999_999), Number] = key(
        60_000, "Optimizer updates; 60 000 x 10 x 512 = 307 M tokens.", source="App. B"
    )
    checkpoint_every: Count = key(
        5000, "Iterations between checkpoints. Each interval is a training job."
    )
    early_checkpoints: tuple[Count, ...] = key(
        (500, 1000, 2000),
        "Additional checkpoints early in training, where the geometry changes fastest. Those that a"
        " shorter training does not reach are left out.",
    )
    save_seconds: Positive = key(
        120.0,
        "Seconds between saves within a job. A killed job loses at most the work of this time, one"
        " iteration, and the time to save.",
    )
    log_every: Count = key(
        10,
        "Iterations between lines of training/metrics.csv. Iterations with a held-out loss are"
        " always logged.",
    )
    print_seconds: Positive = key(
        60.0, "Seconds between progress lines on the terminal: iteration, loss and time left."
    )
    order: Literal["permutation", "offsets"] = key(
        "permutation",
        "Order of the text: permutation, non-overlapping sequences in a new order each epoch, or"
        " random offsets as in nanoGPT.",
    )
    batch_size: Count = key(
        10, "Sequences per iteration, derived from App. B: 300 M / 60 000 / 512."
    )
    micro_batches: Count = key(
        1,
        "Number of gradient accumulation steps, at most batch_size. It need not divide batch_size.",
    )
    processes: Count = key(
        1,
        "Number of data-parallel processes across all nodes, one per GPU; at most batch_size. It"
        " need not divide batch_size.",
    )
    nodes: Count = key(
        1,
        "Number of nodes of a SLURM training job, a divisor of processes. More than 1 requires the"
        " profile slurm.",
    )
    shard: Flag = key(
        False,
        "Shard weights, gradients and moments over the processes (PyTorch FSDP2), for models that"
        " do not fit on one GPU.",
    )
    compile: Flag | Literal["auto"] = key(
        "auto",
        "Apply torch.compile to each group's loop step. auto: on CUDA only. Compiling for CPU"
        " requires a C++ compiler. Compiled results differ by rounding, so this key is part of a"
        " run's identity.",
    )
    precision: Literal["auto", "float32", "bfloat16"] = key(
        "auto",
        "Precision of matrix products and attention in training (autocast). Weights and optimizer"
        " are float32. auto: bfloat16 on CUDA, float32 on CPU. On CPU, bfloat16 is fast only with"
        " AVX512-BF16 or AMX.",
    )
    recompute: Flag = key(
        False,
        "Activation checkpointing per loop step: costs a third more FLOPs, and keeps only one state"
        " per loop step in memory.",
    )
    prefetch: Flag = key(True, "Read the next batch while the current one is computed.")
    peak_tflops: Positive | None = key(
        None,
        "Peak bf16 throughput of the GPU in TFLOP/s, to log the utilisation. null: not logged.",
    )
    cpu_threads: Count = key(
        1, "Torch threads for training on CPU. The bits of the result depend on it."
    )
    learning_rate: Positive = key(6e-4, "Maximum learning rate.", source="App. B, nanoGPT")
    min_learning_rate: Positive = key(
        6e-5, "Learning rate at the end of the cosine.", source="App. B, nanoGPT"
    )
    warmup_iterations: Natural = key(
        2000, "Iterations of linear warm-up.", source="App. B, nanoGPT"
    )
    lr_decay_iterations: Count | None = key(
        60_000,
        "Iteration at which the cosine ends, independent of `iterations`. null: constant rate after"
        " warm-up.",
        source="App. B, nanoGPT",
    )
    beta1: Fraction = key(0.9, "Coefficient of AdamW's first moment.", source="App. B, nanoGPT")
    beta2: Fraction = key(0.95, "Coefficient of AdamW's second moment.", source="App. B, nanoGPT")
    weight_decay: NonNegative = key(
        0.1, "Weight decay of matrices and embeddings.", source="App. B, nanoGPT"
    )
    grad_clip: Positive = key(1.0, "Maximum norm of the gradient.", source="App. B, nanoGPT")
    backprop_depth: Count | None = key(
        None,
        "Number of last loop steps that gradients pass through. null: all. The paper does not"
        " mention truncation; [G] uses 8.",
    )
    exit_gate: ExitGateTraining | None = option(
        None,
        "Train the gate of model.exit_gate with the model (one looped group). The loss, also in the"
        " log, is then the expected cross-entropy under the exit distribution over all loop steps,"
        " each decoded through the layers after the group, minus entropy_weight times the entropy"
        " of this distribution. null: the gate is not trained.",
        source="arXiv 2510.25741",
    )
    held_out_every: Count = key(
        500,
        "Iterations between measurements of the held-out loss. It is also measured at each"
        " checkpoint.",
    )
    held_out_sequences: Count = key(32, "Sequences per measurement of the held-out loss.")
    held_out_loops: Count = key(12, "Fixed loop count of the held-out loss.")

    def compiles(self, device: str) -> bool:
        return device == "cuda" if self.compile == "auto" else self.compile

    def precision_on(self, device: str) -> str:
        """The precision of training on `device`: float32 or bfloat16."""
        if self.precision != "auto":
            return self.precision
        return "bfloat16" if device == "cuda" else "float32"

    def check_keys(self) -> None:
        self._check_schedule()
        self._check_processes()

    def _check_schedule(self) -> None:
        is_checkpoint = self.iterations in checkpoint_iterations(self)
        expected = f"a multiple of train.checkpoint_every = {self.checkpoint_every}"
        expected += " or one of train.early_checkpoints, so that a longer run can continue this one"
        require(is_checkpoint, "train.iterations", self.iterations, expected)
        most = self.learning_rate
        least = self.min_learning_rate
        expected = f"at most train.learning_rate = {most}"
        require(least <= most, "train.min_learning_rate", least, expected)
        end = self.lr_decay_iterations
        warmup = self.warmup_iterations
        expected = f"less than train.lr_decay_iterations = {end}, where null is a constant rate"
        require(end is None or end > warmup, "train.warmup_iterations", warmup, expected)

    def _check_processes(self) -> None:
        size = self.batch_size
        processes = self.processes
        micro = self.micro_batches
        expected = f"at most train.batch_size = {size}"
        require(micro <= size, "train.micro_batches", micro, expected)
        require(processes <= size, "train.processes", processes, expected)
        expected = f"a divisor of train.processes = {processes}, the total over all nodes"
        require(processes % self.nodes == 0, "train.nodes", self.nodes, expected)
        if self.shard:
            require(processes > 1, "train.shard", "true", "false for train.processes = 1")
            # processes that compute nothing would not take part in the gathering of weights
            expected = f"at most train.batch_size / train.processes = {size} / {processes}"
            fits = micro * processes <= size
            require(fits, "train.micro_batches", micro, f"{expected} with train.shard")

    def check(self, config: Any) -> None:
        model = config.model
        if model.injection == "none":
            expected = "null for model.injection: none, where gradients end at the loop's begin"
            require(
                self.backprop_depth is None, "train.backprop_depth", self.backprop_depth, expected
            )
        if self.exit_gate is not None:
            groups = len(model.groups)
            found = f"model.exit_gate: {str(model.exit_gate).lower()} and {groups} looped groups"
            expected = "model.exit_gate: true and one looped group"
            require(model.exit_gate and groups == 1, "train.exit_gate", found, expected)

    def needed_sequences(self, config: Any) -> dict[str, int]:
        count = self.held_out_sequences if config.model.source == "trained" else 0
        return {"held_out_sequences": count}


def checkpoint_iterations(train: TrainConfig) -> list[int]:
    """Iterations with a checkpoint, ascending; iteration 0, the untrained model, is not included.

    Prefix-stable: a larger `iterations` only appends, because neither the early checkpoints nor the
    grid depend on it.
    """
    grid = range(train.checkpoint_every, train.iterations + 1, train.checkpoint_every)
    early = [iteration for iteration in train.early_checkpoints if iteration <= train.iterations]
    return sorted({*grid, *early})
