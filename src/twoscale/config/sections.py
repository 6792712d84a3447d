"""The config: one class per section. Type, range, default, meaning and source of a key are defined only here.

Defaults are the values of the paper (arXiv 2509.23314). Sources: "§" is a section of the paper, "App." its appendix,
"[G]" Geiping et al. 2025 (arXiv 2502.05171), to which the paper defers; "ours" is a choice where both are silent.
`twoscale.config.reference` generates the JSON schema, paper.yaml and docs/config.md from these classes.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    WithJsonSchema,
    model_validator,
)

from twoscale.config.definitions import NOISE_STD, ModelSizes
from twoscale.config.identity import FILE_SOURCES, checkpoint_iterations, whole_sequences
from twoscale.config.thresholds import THRESHOLD_TYPES, check_threshold
from twoscale.errors import InputError, did_you_mean

# Names of runs and criteria, which are also names of folders and files: safe in a shell.
FILE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"

# Number of token ids of the tokenizers whose size is not configurable.
GPT2_VOCAB_SIZE = 50257
BYTES_VOCAB_SIZE = 257  # 256 bytes and the end of text
HALF = 0.5  # share of the state in the blend that the projection may start from
COMMIT = r"[0-9a-f]{40}"


# --- types of values ------------------------------------------------------------------------------------------------


def parse_number(value: Any) -> Any:
    """Convert a string to the number in it, because YAML 1.1 reads 1e-4 as a string. Refuse booleans."""
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")
    if not isinstance(value, str):
        return value
    try:
        return int(value)
    except ValueError:
        return float(value)


def parse_flag(value: Any) -> Any:
    """Convert true and false as a string, because Snakemake's --config reads nested values as strings."""
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


def check_distinct(values: tuple) -> tuple:
    if len(set(values)) < len(values):
        raise ValueError("a value is repeated")
    return values


def sort_loops(loops: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(loops)))


Number = BeforeValidator(parse_number)
Flag = Annotated[StrictBool, BeforeValidator(parse_flag)]
Natural = Annotated[int, Field(ge=0), Number]
Count = Annotated[int, Field(ge=1), Number]
AtLeastTwo = Annotated[int, Field(ge=2), Number]
NonNegative = Annotated[float, Field(ge=0), Number]
Positive = Annotated[float, Field(gt=0), Number]
Share = Annotated[float, Field(gt=0, lt=1), Number]
WholeShare = Annotated[float, Field(ge=0, le=1), Number]
POSITIVE_SCHEMA = {"type": "number", "exclusiveMinimum": 0}
Threshold = Annotated[int | float, Field(gt=0), Number, WithJsonSchema(POSITIVE_SCHEMA)]
Unique = (Field(json_schema_extra={"uniqueItems": True}), AfterValidator(check_distinct))
Distinct = (Field(min_length=1), *Unique)

Dtype = Literal["float32", "float64"]
Sandwich = Literal["post_residual", "branch"]
AdapterInit = Literal["random", "blend"]
StateInit = Literal["noise", "input", "input_plus_noise", "zero"]


def key(default: Any, description: str, *, source: str, derived: bool = False, optional: bool = False) -> Any:
    """A key of a section.

    `derived` marks a value that the user cannot set. `optional` marks a key that `identity.plain` leaves out at its
    default, so that runs from before the key keep their identity.
    """
    marks = {"derived": derived, "optional": optional}
    extra = {"source": source, **{name: True for name, marked in marks.items() if marked}}
    return Field(default, description=description, json_schema_extra=extra)


class Section(BaseModel):
    """Base of all sections: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_by_name=True)


# --- device, text and tokens ----------------------------------------------------------------------------------------


class ComputeConfig(Section):
    """Hardware of all jobs that use torch."""

    device: Literal["cpu", "cuda"] = key(
        "cuda",
        "Device of all torch jobs. Selects the precision of training and the GPU resource of jobs.",
        source="ours",
    )


class DataConfig(Section):
    """Text that is collected, and its split into training and held-out documents."""

    source: Literal["fineweb", "txt", "jsonl", "parquet", "python_docs"] = key(
        "fineweb",
        "Text source: FineWeb from the Hugging Face hub, local files (plain text, one document per file; JSON Lines "
        "with a field `text`, one document per line; parquet with a column `text`, one document per row), or the "
        "documentation of Python.",
        source="§2",
    )
    path: str | None = key(
        None,
        "File, or folder whose files of the source are read, sorted by path: *.txt and *.txt.gz, *.jsonl and "
        "*.jsonl.gz, or *.parquet. Required for source: txt, jsonl and parquet.",
        source="ours",
    )
    piece_characters: Count | None = key(
        8_000,
        "Local files: a document of more than ten times this many characters, such as a novel, is cut into pieces of "
        "at most this many, at blank lines where possible. Each piece is a document: held out or not by its hash, and "
        "a unit of resampling. null: documents are not cut.",
        source="ours",
    )
    max_document_mb: Count = key(
        128,
        "Largest document, in millions of bytes: of a decompressed page of a parquet file, in which no document is "
        "larger; of characters of a line, and of a file of plain text that is not cut into pieces. A larger one is "
        "refused, because memory grows with this number.",
        source="ours",
        optional=True,
    )
    repository: str = key("HuggingFaceFW/fineweb", "Hub repository for source: fineweb.", source="§2")
    subset: str = key(
        "sample-10BT", "Subset of the repository; 300 M tokens are 3 % of the default subset.", source="ours"
    )
    revision: str = key(
        "cd850543a88ba055067841ce91d2669344ff7b7a",
        "Commit of the repository. The default commit contains sample/10BT.",
        source="ours",
    )
    train_characters: Count | None = key(
        1_500_000_000,
        "Characters of training text to collect for a tokenizer other than gpt2. null: no limit.",
        source="ours",
    )
    train_tokens: Count | None = key(
        300_000_000,
        "Tokens of training text to collect for the gpt2 tokenizer. null: no limit.",
        source="App. B",
    )
    held_out_tokens: Count = key(
        1_000_000,
        "Number of held-out tokens: the first ones of the held-out documents that remain, in order.",
        source="ours",
    )
    held_out_margin: Annotated[float, Field(ge=1), Number] = key(
        1.5,
        "Held-out text to collect, as a multiple of held_out_tokens, because near-duplicates of training text are "
        "dropped.",
        source="ours",
    )
    held_out_fraction: Share = key(
        0.005,
        "Fraction of documents that are held out, selected by a hash of the document; for source: python_docs, of "
        "the top-level module that it belongs to.",
        source="ours",
    )
    near_duplicate_tokens: AtLeastTwo = key(
        32,
        "A held-out document in which this many tokens in a row occur in the training text is dropped. The tokenizer "
        "bytes needs about 150.",
        source="ours",
    )
    text_shards: Annotated[int, Field(ge=1, le=999), Number] = key(
        8, "Number of parquet files that the text is written to.", source="ours"
    )

    @property
    def max_document_bytes(self) -> int:
        return self.max_document_mb * 10**6


class DownloadConfig(Section):
    """Requests to the hub, for data.source: fineweb. These keys do not affect the text."""

    retries: Natural = key(10, "Attempts after the first one that fails.", source="ours")
    delay: NonNegative = key(
        1.0,
        "Seconds before the first retry. The delay doubles with each retry and is longer where the hub requests it.",
        source="ours",
    )
    max_delay: NonNegative = key(60.0, "Maximum number of seconds between two attempts.", source="ours")
    timeout: Positive = key(30.0, "Seconds without data after which an attempt fails.", source="ours")
    part_characters: Count = key(
        16_000_000,
        "Characters per part. A download that is interrupted loses at most one part.",
        source="ours",
    )


class TokenizerConfig(Section):
    """Tokenizer of the text."""

    name: Literal["gpt2", "bpe", "bytes", "published"] = key(
        "gpt2",
        "Tokenizer: GPT-2's, a BPE tokenizer trained on the text, bytes, or published: tokenizer.json of a published "
        "model.",
        source="§2",
    )
    vocab_size: Count = key(
        4096,
        "Vocabulary size of name: bpe, at least 258; for name: published, the number of rows of the model's embedding. "
        "Other tokenizers ignore it.",
        source="ours",
    )

    @property
    def num_ids(self) -> int:
        """Number of token ids, including the end of text; for a published model, that of its embedding's rows."""
        return {"gpt2": GPT2_VOCAB_SIZE, "bytes": BYTES_VOCAB_SIZE}.get(self.name, self.vocab_size)

    @model_validator(mode="after")
    def _check_bytes(self) -> Self:
        if self.name != "published" and self.vocab_size <= BYTES_VOCAB_SIZE:
            raise InputError(
                f"config key tokenizer.vocab_size: found {self.vocab_size}, expected a whole number >= "
                f"{BYTES_VOCAB_SIZE + 1}."
            )
        return self


# --- model and training ---------------------------------------------------------------------------------------------


class RotaryScaling(Section):
    """Stretch of the slow rotary frequencies for long contexts, as in Llama 3.1."""

    factor: Annotated[float, Field(ge=1), Number] = key(
        8.0, "Divisor of frequencies below the slow bound.", source="Llama 3.1"
    )
    low_frequency_factor: Positive = key(
        1.0, "Slow: fewer rotations than this over original_context_length.", source="Llama 3.1"
    )
    high_frequency_factor: Positive = key(
        4.0, "Fast: more rotations than this over original_context_length; unchanged.", source="Llama 3.1"
    )
    original_context_length: Count = key(8192, "Tokens of the context before the stretch.", source="Llama 3.1")


class ModelConfig(ModelSizes, Section):
    """Architecture of the model, and where its weights come from."""

    architecture: str = key(
        "transformer",
        "Registered model. A name other than transformer loads the module of that name in twoscale.model.",
        source="ours",
    )
    num_layers: Count = key(12, "Number of layers.", source="§2")
    num_heads: Count = key(12, "Number of attention heads per layer; divides hidden_size.", source="§2")
    hidden_size: Count = key(768, "Size of the hidden state.", source="§2")
    context_length: AtLeastTwo = key(512, "Tokens per sequence (the paper's block size).", source="§2")
    vocab_size: Count = key(GPT2_VOCAB_SIZE, "Number of token ids of the tokenizer.", source="§2", derived=True)
    groups: tuple[Annotated[tuple[Count, ...], Field(min_length=1)], ...] = key(
        ((4,), (5, 6), (7,)),
        "Looped groups: lists of consecutive layers, numbered from 1. []: no loops, a plain GPT.",
        source="§2",
    )
    mean_loops: Positive = key(
        12.0,
        "Parameter r of the log-normal Poisson distribution of loop counts. "
        "It also defines the effective depth that scales the initial weights.",
        source="App. B",
    )
    loops_sigma: NonNegative = key(0.5, "Standard deviation of the log-normal distribution.", source="[G]")
    sandwich: Sandwich = key(
        "post_residual",
        "Position of the second norm of a layer's sandwich normalization: after the residual sum, as in the code "
        "of [G], or on the branch before the sum. App. B does not specify it.",
        source="[G]",
    )
    state_init: StateInit = key(
        "noise",
        "First state of a looped group: noise, the group's input, their sum, or zeros.",
        source="§2, [G]",
    )
    loop_noise: NonNegative = key(
        0.0,
        'Standard deviation of fresh noise that is added at every loop step. §2, "each time the block is applied", '
        "also allows a value above 0.",
        source="[G]",
    )
    adapter_init: AdapterInit = key(
        "random",
        "Initialization of the projection of state and input: random, or a blend of the two, by default half the state "
        "plus half the input, with small noise (ours).",
        source="[G]",
    )
    adapter_share: WholeShare = key(
        HALF,
        "Share s of the state in adapter_init: blend. The projection starts as s times the state plus 1 - s times the "
        "input, each block with random weights of 0.04 times its share. 0: the input alone, 1: the state alone.",
        source="ours",
        optional=True,
    )
    exit_norm: Literal["none", "final_norm"] = key(
        "none",
        "Norm on the state that a looped group returns. The paper does not mention one; [G] applies final_norm.",
        source="ours",
    )
    positions: Literal["learned", "rotary"] = key(
        "learned",
        "Positions: a learned embedding that is added to the token's, or rotary, a rotation of queries and keys.",
        source="§2",
        optional=True,
    )
    rotary_pairs: Literal["interleaved", "halves"] = key(
        "interleaved",
        "Channels of a head that are rotated together: 2d and 2d + 1 as in [G], or d and d + D/2 as in Llama.",
        source="[G]",
        optional=True,
    )
    rotary_base: Positive = key(
        10_000.0, "Base of the rotary frequencies, base^(-2d/D).", source="arXiv 2104.09864", optional=True
    )
    rotary_scaling: RotaryScaling | None = key(
        None, "Stretch of the slow rotary frequencies. null: none.", source="ours", optional=True
    )
    num_kv_heads: Count | None = key(
        None,
        "Heads of keys and values, a divisor of num_heads; each serves num_heads / num_kv_heads query heads. null: "
        "num_heads.",
        source="§2",
        optional=True,
    )
    qk_bias: Flag = key(
        False, "Biases on queries and keys, added before the rotation, as in [G].", source="§2", optional=True
    )
    qk_norm: Flag = key(
        False, "RMSNorm over all heads of the queries and of the keys, as in OLMo 2.", source="§2", optional=True
    )
    mlp: Literal["plain", "gated"] = key(
        "plain",
        "MLP: out(silu(in(x))), or gated as in [G] and Llama: out(silu(gate(x)) * value(x)).",
        source="§2",
        optional=True,
    )
    mlp_size: Count | None = key(None, "Hidden size of the MLP. null: 4 times hidden_size.", source="§2", optional=True)
    norms: Literal["sandwich", "pre", "post"] = key(
        "sandwich",
        "Norms of a layer: before and after attention and MLP (see sandwich), only before them as in Llama, or only "
        "after them, on the branch, as in OLMo 2.",
        source="App. B",
        optional=True,
    )
    norm_epsilon: Positive = key(1e-6, "Epsilon of every RMSNorm.", source="[G]", optional=True)
    embedding_scale: Positive | None = key(
        None, "Factor of the embedding. null: the square root of hidden_size, as in [G].", source="[G]", optional=True
    )
    state_std: Positive = key(
        NOISE_STD,
        "Standard deviation of the noise of state_init before its truncation at three deviations.",
        source="[G]",
        optional=True,
    )
    injection: Literal["projection", "none"] = key(
        "projection",
        "How the input enters a loop step: projection of [state ; input], or none, where it is the first state only.",
        source="§2",
        optional=True,
    )
    loop_norm: Flag = key(
        False,
        "Final norm at the end of each loop step, as in Ouro (arXiv 2510.25741); the head then reads states without a "
        "norm of its own.",
        source="§2",
        optional=True,
    )
    tied_head: Flag = key(
        True, "The head is the token embedding. false: a matrix of its own.", source="[G]", optional=True
    )
    exit_gate: Flag = key(
        False,
        "Linear gate that reads a probability of exit from a state, for the criterion exit_gate (Ouro). "
        "train.exit_gate trains it.",
        source="§2",
        optional=True,
    )
    vocab_multiple: Count = key(
        64,
        "The embedding has vocab_size rows, rounded up to a multiple of this (nanoGPT: 50257 -> 50304).",
        source="nanoGPT",
        optional=True,
    )
    source: Literal["trained", "published"] = key(
        "trained",
        "Origin of the weights: trained by this workflow, or published, from repository and revision or from folder.",
        source="ours",
        optional=True,
    )
    repository: str | None = key(
        None, "Repository of a published model on the Hugging Face hub.", source="ours", optional=True
    )
    revision: Annotated[str, Field(pattern=f"^{COMMIT}$")] | None = key(
        None, "Commit of the repository, 40 hexadecimal digits.", source="ours", optional=True
    )
    folder: str | None = key(
        None,
        "Local folder of a published model in the layout of the hub: config.json, safetensors files, tokenizer.json.",
        source="ours",
        optional=True,
    )

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.hidden_size % self.num_heads:
            raise InputError(
                f"config key model.num_heads: found {self.num_heads}, expected a divisor of model.hidden_size = "
                f"{self.hidden_size}."
            )
        if self.num_heads % self.kv_heads:
            raise InputError(
                f"config key model.num_kv_heads: found {self.num_kv_heads}, expected a divisor of model.num_heads = "
                f"{self.num_heads}."
            )
        if self.positions == "rotary" and self.head_dim % 2:
            raise InputError(
                f"config key model.num_heads: found {self.num_heads}, expected an even head dimension for rotary "
                f"positions, not {self.head_dim}."
            )
        return self

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        published = self.source == "published"
        origins = [name for name in ("repository", "folder") if getattr(self, name) is not None]
        if published != (len(origins) == 1):
            expected = "either repository or folder" if published else "neither repository nor folder"
            found = " and ".join(origins) or "neither"
            raise InputError(f"config key model: found {found}, expected {expected} for model.source: {self.source}.")
        if (self.repository is None) != (self.revision is None):
            raise InputError(
                f"config key model.revision: found {self.revision}, expected the commit of model.repository, and only "
                "with one."
            )
        return self

    @model_validator(mode="after")
    def _check_adapter_share(self) -> Self:
        if self.adapter_share != HALF and self.adapter_init != "blend":
            raise InputError(
                f"config key model.adapter_share: found {self.adapter_share:g}, expected {HALF:g} unless "
                f"model.adapter_init is blend, not {self.adapter_init}."
            )
        return self

    @model_validator(mode="after")
    def _check_loop(self) -> Self:
        if self.injection == "none" and not self.state_init.startswith("input"):
            raise InputError(
                f"config key model.state_init: found {self.state_init}, expected input or input_plus_noise for "
                "model.injection: none, where the first state is all that a loop sees of its input."
            )
        if self.loop_norm and not (self.groups and self.groups[-1][-1] == self.num_layers):
            raise InputError(
                "config key model.loop_norm: found true, expected false unless the last layer is looped, because the "
                "head then reads states as they are."
            )
        return self

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        seen: set[int] = set()
        for group in self.groups:
            problem = _group_problem(group, seen, self.num_layers)
            if problem:
                raise InputError(f"config key model.groups: {problem}.")
            seen |= set(group)
        return self


def _group_problem(group: tuple[int, ...], seen: set[int], num_layers: int) -> str | None:
    """What is wrong with a looped group, given the layers of the groups before it."""
    found = f"found the group {list(group)}"
    if list(group) != list(range(group[0], group[0] + len(group))):
        return f"{found}, expected consecutive layers in ascending order"
    if group[-1] > num_layers:
        return f"{found}, expected layers between 1 and model.num_layers = {num_layers}"
    if seen & set(group):
        return f"found layer {min(seen & set(group))} in two groups, expected disjoint groups"
    if seen and group[0] < max(seen):
        return f"{found} after a deeper one, expected the groups in the order of the layers"
    return None


class ExitGateTraining(Section):
    """Training of the exit gate with the model, as the first stage of Ouro (arXiv 2510.25741)."""

    entropy_weight: NonNegative = key(
        0.1,
        "Factor beta of the entropy of the exit distribution, in nats, which the loss subtracts. Ouro starts with 0.1 "
        "and goes on with 0.05. 0: the distribution may collapse onto one loop step.",
        source="arXiv 2510.25741",
    )


class TrainConfig(Section):
    """Training run: schedule, batches, optimizer and held-out loss."""

    iterations: Annotated[int, Field(ge=1, le=999_999), Number] = key(
        60_000, "Optimizer updates; 60 000 x 10 x 512 = 307 M tokens.", source="App. B"
    )
    checkpoint_every: Count = key(5000, "Iterations between checkpoints; one training job each.", source="ours")
    early_checkpoints: tuple[Count, ...] = key(
        (500, 1000, 2000),
        "Additional checkpoints early in training, where the geometry changes fastest.",
        source="ours",
    )
    save_seconds: Positive = key(
        120.0,
        "Seconds between saves inside a job. A job that is killed loses at most this much, one iteration and the "
        "writing.",
        source="ours",
    )
    log_every: Count = key(
        10,
        "Iterations between lines of training/metrics.csv, which also has those with a held-out loss.",
        source="ours",
    )
    print_seconds: Positive = key(
        60.0, "Seconds between lines about a segment on the terminal: iteration, loss and time left.", source="ours"
    )
    tracker: Literal["none", "tensorboard"] = key(
        "none",
        "Further files for the lines of training/metrics.csv. tensorboard: event files beside it; it needs the package "
        "tensorboard.",
        source="ours",
    )
    order: Literal["permutation", "offsets"] = key(
        "permutation",
        "Order of the text: non-overlapping sequences in a new order each epoch, or random offsets as in nanoGPT.",
        source="ours",
    )
    batch_size: Count = key(10, "Sequences per iteration, derived from App. B: 300 M / 60 000 / 512.", source="ours")
    micro_batches: Count = key(
        1,
        "Gradient accumulation steps, at most batch_size, which they need not divide.",
        source="ours",
    )
    processes: Count = key(
        1,
        "Data-parallel processes, those of all nodes together, one per GPU, at most batch_size, which they need not "
        "divide.",
        source="ours",
    )
    nodes: Count = key(
        1,
        "Nodes of the SLURM job that trains, with as many processes on each; more than 1 needs the profile slurm.",
        source="ours",
    )
    shard: Flag = key(
        False,
        "Divide weights, gradients and moments over the processes, for a model that one GPU cannot hold (FSDP2 of "
        "PyTorch). false: each process has all of them.",
        source="ours",
    )
    compile: Flag | Literal["auto"] = key(
        "auto",
        "Apply torch.compile to each group's loop step. auto: on CUDA only. On CPU it needs a C++ compiler. It changes "
        "the result by rounding, so it is part of a run's identity.",
        source="ours",
    )
    precision: Literal["auto", "float32", "bfloat16"] = key(
        "auto",
        "Precision of matrix products and attention in training, by autocast; weights and optimizer are float32. auto: "
        "bfloat16 on CUDA, float32 on CPU. On CPU bfloat16 needs AVX512-BF16 or AMX to be fast.",
        source="ours",
    )
    recompute: Flag = key(
        False,
        "Activation checkpointing per loop step: a third more FLOPs, and only one state per loop step in memory.",
        source="ours",
    )
    prefetch: Flag = key(True, "Read the next batch during the computation of the current one.", source="ours")
    peak_tflops: Positive | None = key(
        None,
        "Peak bf16 throughput of the GPU in TFLOPS, for the utilisation in the log. null: not logged.",
        source="ours",
    )
    cpu_threads: Count = key(1, "Torch threads of training on CPU. The result depends on it bit by bit.", source="ours")
    learning_rate: Positive = key(6e-4, "Maximum learning rate.", source="App. B, nanoGPT")
    min_learning_rate: Positive = key(6e-5, "Learning rate at the end of the cosine.", source="App. B, nanoGPT")
    warmup_iterations: Natural = key(2000, "Iterations of linear warm-up.", source="App. B, nanoGPT")
    lr_decay_iterations: Count | None = key(
        60_000,
        "Iteration at which the cosine ends, independent of `iterations`. null: constant after warm-up.",
        source="App. B, nanoGPT",
    )
    beta1: Share = key(0.9, "Coefficient of AdamW's first moment.", source="App. B, nanoGPT")
    beta2: Share = key(0.95, "Coefficient of AdamW's second moment.", source="App. B, nanoGPT")
    weight_decay: NonNegative = key(0.1, "Weight decay of matrices and embeddings.", source="App. B, nanoGPT")
    grad_clip: Positive = key(1.0, "Maximum norm of the gradient.", source="App. B, nanoGPT")
    backprop_depth: Count | None = key(
        None,
        "Loop steps that the gradient passes through, counted from the last. null: all. The paper does not mention "
        "truncation; [G] uses 8.",
        source="ours",
    )
    exit_gate: ExitGateTraining | None = key(
        None,
        "Train the gate of model.exit_gate with the model (one looped group). The loss is then the cross-entropy that "
        "the exit distribution expects over all loop steps, each decoded through the layers behind the group, minus "
        "its entropy times entropy_weight; so is the column loss of the log. null: the gate keeps its initial weights.",
        source="arXiv 2510.25741",
        optional=True,
    )
    held_out_every: Count = key(
        500,
        "Iterations between measurements of the held-out loss, which is also measured at each checkpoint.",
        source="ours",
    )
    held_out_sequences: Count = key(32, "Sequences per measurement of the held-out loss.", source="ours")
    held_out_loops: Count = key(12, "Fixed loop count of the held-out loss.", source="ours")

    def compiles(self, device: str) -> bool:
        """Whether training on `device` compiles the model."""
        return device == "cuda" if self.compile == "auto" else self.compile

    def precision_on(self, device: str) -> str:
        """The precision of training on `device`: float32 or bfloat16."""
        return {"cuda": "bfloat16", "cpu": "float32"}[device] if self.precision == "auto" else self.precision

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.iterations not in checkpoint_iterations(self):
            raise InputError(
                f"config key train.iterations: found {self.iterations}, expected an iteration of the checkpoint "
                f"schedule (a multiple of train.checkpoint_every = {self.checkpoint_every}), so that a longer run "
                "can continue this one."
            )
        return self

    @model_validator(mode="after")
    def _check_batch(self) -> Self:
        for name in ("micro_batches", "processes"):
            if getattr(self, name) > self.batch_size:
                raise InputError(
                    f"config key train.{name}: found {getattr(self, name)}, expected at most train.batch_size = "
                    f"{self.batch_size}."
                )
        return self

    @model_validator(mode="after")
    def _check_processes(self) -> Self:
        if self.processes % self.nodes:
            raise InputError(
                f"config key train.nodes: found {self.nodes}, expected a divisor of train.processes = "
                f"{self.processes}, which all nodes have together."
            )
        if self.shard and self.processes == 1:
            raise InputError(
                "config key train.shard: found true, expected false with train.processes = 1, or more processes to "
                "divide the model over."
            )
        # processes that compute nothing would not take part in the gathering of weights
        if self.shard and self.micro_batches * self.processes > self.batch_size:
            raise InputError(
                f"config key train.micro_batches: found {self.micro_batches}, expected at most train.batch_size / "
                f"train.processes = {self.batch_size} / {self.processes} with train.shard."
            )
        return self

    @model_validator(mode="after")
    def _check_learning_rate(self) -> Self:
        if self.min_learning_rate > self.learning_rate:
            raise InputError(
                f"config key train.min_learning_rate: found {self.min_learning_rate}, expected at most "
                f"train.learning_rate = {self.learning_rate}."
            )
        if self.lr_decay_iterations is not None and self.lr_decay_iterations <= self.warmup_iterations:
            raise InputError(
                f"config key train.lr_decay_iterations: found {self.lr_decay_iterations}, expected more than "
                f"train.warmup_iterations = {self.warmup_iterations}, or null for a constant rate."
            )
        return self


# --- exit criteria --------------------------------------------------------------------------------------------------


class CriterionConfig(Section):
    """Thresholds of one exit criterion. A criterion that is not built in names its Python file and class."""

    thresholds: Annotated[tuple[Threshold, ...], *Distinct] = Field(description="Values of tau to measure.")
    file: str | None = Field(
        None, description="Python file of the criterion.", min_length=1, exclude_if=lambda file: file is None
    )
    class_name: str | None = Field(
        None,
        alias="class",
        description="Class in that file.",
        min_length=1,
        exclude_if=lambda class_name: class_name is None,
    )


def typed_criteria(criteria: Mapping[str, CriterionConfig]) -> dict[str, CriterionConfig]:
    """The criteria with thresholds in the criterion's type, where that loses nothing."""
    return {name: entry.model_copy(update={"thresholds": _typed(name, entry)}) for name, entry in criteria.items()}


def _typed(name: str, entry: CriterionConfig) -> tuple[int | float, ...]:
    if THRESHOLD_TYPES.get(name) is not int:
        return tuple(map(float, entry.thresholds))
    return tuple(int(value) if value == int(value) else value for value in entry.thresholds)


Criteria = Annotated[dict[str, CriterionConfig], Field(min_length=1), AfterValidator(typed_criteria)]


def check_criteria(key: str, criteria: Mapping[str, CriterionConfig], max_loops: int | None = None) -> None:
    """Refuse a criterion that is neither built in nor has a file, and thresholds that do not fit their criterion."""
    for name, entry in criteria.items():
        _check_origin(f"{key}.{name}", name, entry)
        for threshold in entry.thresholds:
            check_threshold(name, threshold, max_loops, f"config key {key}.{name}.thresholds", "exits.max_loops")


def _check_origin(key: str, name: str, entry: CriterionConfig) -> None:
    if not re.fullmatch(FILE_NAME, name):
        raise InputError(f"config key {key}: found the name {name!r}, expected letters, digits, '.', '_' and '-'.")
    builtin = name in THRESHOLD_TYPES
    if (entry.file is None) != (entry.class_name is None):
        absent = "class" if entry.class_name is None else "file"
        raise InputError(f"config key {key}: found no {absent}, expected a file and a class, or neither.")
    if builtin and entry.file is not None:
        raise InputError(
            f"config key {key}.file: found {entry.file!r}, expected another name for a criterion from a file: "
            "this one is built in."
        )
    if not builtin and entry.file is None:
        raise InputError(
            f"config key {key}: unknown criterion, expected one of {', '.join(THRESHOLD_TYPES)}, or a file and a class"
            f"{did_you_mean(name, THRESHOLD_TYPES)}."
        )


def _grids(**thresholds: list[float]) -> dict[str, CriterionConfig]:
    """The default of a key `criteria`."""
    return typed_criteria({name: CriterionConfig(thresholds=values) for name, values in thresholds.items()})


# --- measurements ---------------------------------------------------------------------------------------------------


class TrajectoriesConfig(Section):
    """States along the loops of each checkpoint, on held-out text."""

    loops: AtLeastTwo = key(30, "Loop steps of every group.", source="Fig. 5")
    tokens: Count = key(8192, "Held-out tokens per checkpoint, in whole sequences.", source="ours")
    batch_size: Count = key(2, "Sequences at a time; limits the memory.", source="ours")
    dtype: Dtype = key(
        "float64",
        "Precision. In float32 steps stop shrinking near 1e-5, and their angles are rounding errors.",
        source="ours",
    )
    states_sequence: Natural = key(
        0, "Sequence whose states are saved for Fig. 1, counted from 0 among those in tokens.", source="Fig. 1"
    )


HALF_DECADES = [1e-5, 3.16e-5, 1e-4, 3.16e-4, 1e-3, 3.16e-3, 1e-2]


class ExitsConfig(Section):
    """Quality and latency of exit criteria at the last checkpoint."""

    max_loops: Count = key(30, "Maximum number of loop steps per token and group.", source="Fig. 5, App. D")
    criteria: Criteria = key(
        _grids(fixed=[30], step_norm=HALF_DECADES, kl=HALF_DECADES, acceleration=HALF_DECADES),
        "Exit criteria and their thresholds. Claim 10 requires the half decades between the decades of App. D (ours). "
        "null removes a criterion of the defaults or the preset.",
        source="App. D",
    )
    readout: Literal["head", "remaining_layers"] = key(
        "head",
        "Predictions from a state inside a group: head applies the final norm and the head (§4, \"the model's decoder "
        'head"). remaining_layers [G] first applies the layers after the last group; criteria that use predictions '
        "then process text position by position.",
        source="§4",
    )
    kv_slots: Count | None = key(
        None,
        "Slots per token in the KV cache that loop steps share, as in [G]; text is then processed position by "
        "position. null: one slot per loop step.",
        source="ours",
    )
    cuda_graphs: Flag = key(
        True,
        "Decode by replaying captured loop steps, and with one slot per loop step several of them at once, ahead of "
        "the exit decisions. CUDA only.",
        source="ours",
    )
    compile: Flag | Literal["auto"] = key(
        "auto",
        "Decode with compiled loop steps. auto: on CUDA only, before they are captured; where that is impossible, for "
        "example without Triton, they are captured as they are. On CPU it takes a C++ compiler and pays for hidden "
        "sizes up to a few hundred and many tokens: the first run compiles for about ten seconds per group, later ones "
        "load the result from the cache of torch.compile.",
        source="ours",
    )
    dtype: Literal["float32", "float64", "bfloat16"] = key(
        "float32",
        "Precision of weights, states and decisions. bfloat16 halves the bytes that a token reads, but a step below "
        "about 1/256 of the state is rounding there, so criteria of steps exit by rounding.",
        source="ours",
    )
    quality_tokens: Count = key(
        16_384, "Held-out tokens for cross-entropy and perplexity, in whole sequences.", source="ours"
    )
    quality_batch_size: Count = key(4, "Sequences at a time.", source="ours")
    control_draws: Count = key(
        3,
        "Draws of the random exits that every criterion is compared with, at the same evaluations. Each evaluates the "
        "text once more; one pass more is for fixed loops at the same mean.",
        source="ours",
    )
    latency_tokens: Count = key(
        64, "Timed tokens per repeat, spread over the context; at most model.context_length.", source="ours"
    )
    latency_segments: Count = key(
        4,
        "Places in the context at which latency_tokens are timed; the text before each is read untimed.",
        source="ours",
    )
    latency_repeats: Count = key(5, "Timed repeats.", source="ours")

    @model_validator(mode="after")
    def _check_criteria(self) -> Self:
        check_criteria("exits.criteria", self.criteria, self.max_loops)
        return self


class FiguresConfig(Section):
    """What the figures show."""

    fig1_tokens: Count = key(8, "Tokens in Fig. 1, one polyline each.", source="ours")
    dlr_reference_state: Literal["first_state", "projected", "final", "initial"] = key(
        "first_state",
        'State that Fig. 2 takes as "x^0 of the next group" in the drift-to-loop ratio: after the first loop step, '
        "after the input projection, after the last loop step, or the initial state.",
        source="ours",
    )
    seed_band: bool = key(
        False,
        "Show the range over the seeds of `seeds` in Fig. 2, 3 and 5, which then need the runs under all of them.",
        source="ours",
    )


class ExploreConfig(Section):
    """The page results/explore.html: tokens of one held-out sequence at the last checkpoint.

    Every group runs exits.max_loops loop steps; the exits are those under the criteria of `exits`.
    """

    sequence: Natural = key(0, "Sequence, counted from 0 among those in trajectories.tokens.", source="ours")
    tokens: Count = key(
        64,
        "Tokens from the beginning of the sequence; all of it if it is shorter. Each adds about 10 kB to the page.",
        source="ours",
    )


class ScalingConfig(Section):
    """Quality at fixed loop counts, for every checkpoint (results/scaling.pdf)."""

    loops: Annotated[tuple[Count, ...], Field(min_length=1), AfterValidator(sort_loops)] = key(
        (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64),
        "Loop counts, the same in every group. Those up to exits.max_loops are the fixed loop counts of pareto.pdf.",
        source="ours",
    )
    tokens: Count = key(16_384, "Held-out tokens per checkpoint, in whole sequences.", source="ours")
    batch_size: Count = key(4, "Sequences at a time.", source="ours")
    dtype: Dtype = key("float32", "Precision.", source="ours")


class LensConfig(Section):
    """What the state of every loop step predicts through the layers behind its group, at the last checkpoint.

    The figure results/lens.pdf has the loop steps 0, the powers of two and the numbers half way between them, the
    mean of training and the last one.
    """

    max_multiple: Annotated[float, Field(ge=1), Number] = key(
        8.0, "Last loop step of the group that is decoded, as a multiple of model.mean_loops.", source="ours"
    )
    other_loops: Count | None = key(
        None,
        "Loop steps of the groups before and behind the one that is decoded. null: model.mean_loops, rounded.",
        source="ours",
    )
    tokens: Count = key(8192, "Held-out tokens, in whole sequences.", source="ours")
    batch_size: Count = key(4, "Sequences at a time.", source="ours")
    dtype: Dtype = key("float32", "Precision.", source="ours")


STATE_GRID = [1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0]
RELATIVE_GRID = [3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3]
PROBABILITY_GRID = [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99]
KL_GRID = [1e-7, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 0.1]


class ParetoConfig(Section):
    """Exit criteria on dense grids, at the last checkpoint.

    Their quality against latency and loops is in results/pareto.pdf, and what their exits are worth beside random
    exits, fixed loops and an oracle in results/arena.pdf and results/arena.md.
    """

    criteria: Criteria = key(
        _grids(
            step_norm=STATE_GRID,
            step_norm_relative=RELATIVE_GRID,
            kl=KL_GRID,
            acceleration=STATE_GRID,
            acceleration_normalized=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
            acceleration_relative=RELATIVE_GRID,
            entropy_diff=[1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3],
            argmax_stability=[1, 2, 3, 5, 8, 12],
            cosine=[1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 0.1],
            minp_kl=KL_GRID,
            confidence=PROBABILITY_GRID,
            margin=PROBABILITY_GRID,
            entropy=[0.03, 0.1, 0.3, 0.7, 1.5, 2.5, 3.5, 4.5, 6.0],
        ),
        "Exit criteria and their dense grids of thresholds. Criteria of `exits` that are absent here keep their "
        "thresholds. [G] uses entropy_diff 1e-3, argmax_stability 5, cosine 1e-3 and minp_kl 1e-5. null removes a "
        "criterion of the defaults or the preset.",
        source="ours",
    )
    quality_tokens: Count = key(
        8192, "Held-out tokens for cross-entropy and perplexity, in whole sequences.", source="ours"
    )
    latency_tokens: Count = key(
        32, "Timed tokens per repeat, spread over the context; at most model.context_length.", source="ours"
    )
    latency_repeats: Count = key(3, "Timed repeats.", source="ours")


class OracleConfig(Section):
    """Oracles that know every loop step of a token, beside which the criteria of `pareto` have their regret.

    Everything is on frozen trajectories: one token leaves early, the others run exits.max_loops.
    """

    tolerance: Annotated[float, Field(ge=0), Number] = key(
        0.01,
        "A token is settled from the first loop step from which its cross-entropy stays at most this many nats above "
        "that after exits.max_loops.",
        source="ours",
    )
    tokens: Count = key(
        4096,
        "Held-out tokens, in whole sequences. Each group costs about exits.max_loops passes of the text, and the "
        "decisions of every criterion at every threshold.",
        source="ours",
    )
    batch_size: Count = key(2, "Sequences at a time.", source="ours")


class ProbeConfig(Section):
    """Fit of the criterion `probe`: a linear classifier of states of the last checkpoint, on training text.

    It is fitted only where `probe` is among the criteria of `exits`, `pareto`, `calibration` or `throughput`.
    """

    tokens: Count = key(
        4096,
        "Tokens of training text, in whole sequences spread over it. Each is a sample after each of its "
        "exits.max_loops loop steps, with model.hidden_size + 2 features in float64, which are in memory twice.",
        source="ours",
    )
    tolerance: NonNegative = key(
        0.01,
        "A token is settled once its cross-entropy stays at most this many nats above that of the last loop step.",
        source="ours",
    )
    penalty: Positive = key(
        1e-4, "Factor of half the squared weights of standardised features, beside the mean log loss.", source="ours"
    )
    batch_size: Count = key(4, "Sequences at a time; limits the memory.", source="ours")
    dtype: Dtype = key("float32", "Precision of the states.", source="ours")


class CalibrationConfig(Section):
    """Thresholds of exit criteria that are calibrated on held-out documents (results/calibration.pdf).

    Documents are divided into three parts: on one a path through the thresholds is searched, from many evaluations to
    few, on one thresholds of the path are chosen, and on one they are reported. Loop steps, readout, KV slots,
    precision and batch size are those of exits.
    """

    criteria: Criteria = key(
        _grids(
            step_norm=[1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0],
            kl=[1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 0.1],
            acceleration=[1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0],
        ),
        "Exit criteria and the thresholds that a path may have, for all groups together and for each group. null "
        "removes a criterion of the defaults or the preset.",
        source="ours",
    )
    tokens: Count = key(
        131_072,
        "Held-out tokens, in whole sequences, of all three parts; all of them if data.held_out_tokens is less.",
        source="ours",
    )
    search_share: Share = key(0.25, "Share of the documents on which paths are searched.", source="ours")
    report_share: Share = key(
        0.25,
        "Share of the documents on which the chosen thresholds are measured. The others choose them.",
        source="ours",
    )
    path_end: Positive = key(
        0.3,
        "A path ends with the first thresholds whose mean cross-entropy on the documents of the search is this many "
        "nats per token above that of all loop steps.",
        source="ours",
    )

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if self.search_share + self.report_share >= 1:
            raise InputError(
                f"config key calibration.report_share: found {self.report_share:g}, expected less than "
                f"{1 - self.search_share:g}, so that documents are left beside calibration.search_share."
            )
        return self


Promises = Annotated[tuple[Positive, ...], *Unique]


class PromisesConfig(Section):
    """Promises about quality for which thresholds are chosen, each on its own: E[loss] <= epsilon.

    A promise holds with probability 1 - delta over the documents that choose the threshold, by Learn then Test
    (arXiv 2110.01052). The loss is that of exits against all loop steps, a mean over the tokens of a unit.
    """

    nats: Promises = key(
        (0.01, 0.02, 0.05, 0.1), "Values of epsilon for the rise of the cross-entropy, nats per token.", source="ours"
    )
    disagreement: Annotated[tuple[Share, ...], *Unique] = key(
        (0.01, 0.02, 0.05, 0.1),
        "Values of epsilon for the share of tokens with another most likely next token.",
        source="arXiv 2207.07061",
    )
    delta: Share = key(0.1, "Probability with which a promise may be broken.", source="arXiv 2110.01052")
    test: Literal["betting", "hoeffding_bentkus"] = key(
        "betting",
        "p-values of thresholds: betting (arXiv 2010.09686, 2101.02703), which needs fewer units where losses vary "
        "little, or the bounds of Hoeffding and Bentkus (arXiv 2110.01052). Both are valid for any number of units.",
        source="ours",
    )
    clip: Annotated[float, Field(gt=1), Number] = key(
        5.0,
        "Losses of a unit count from 0 to this multiple of epsilon, because the test needs a bound. With betting, no "
        "promise can be made with fewer units than log(1 / delta) / log(1 + 1 / clip), 13 by default.",
        source="ours",
    )
    unit: Literal["document", "sequence"] = key(
        "document",
        "What the test takes for independent and alike: documents, or the sequences of all documents, where documents "
        "are few and long. Sequences of one document are not independent, so the promise is then nominal.",
        source="ours",
    )

    @model_validator(mode="after")
    def _check_promises(self) -> Self:
        if not self.nats and not self.disagreement:
            raise InputError("config key promises.nats: found none, expected at least one here or in disagreement.")
        return self


class ThroughputConfig(Section):
    """Tokens per second of sequences that are decoded together, at the last checkpoint (results/throughput.pdf).

    Every loop step has its own keys and values, and predictions are made with the head, whatever `exits` says.
    """

    criteria: Criteria = key(
        _grids(step_norm=[1e-2], kl=[1e-2], acceleration=[1e-2]),
        "Exit criteria and their thresholds, which are compared with exits.max_loops loop steps for all tokens. null "
        "removes a criterion of the defaults or the preset.",
        source="ours",
    )
    sequences: Annotated[tuple[Count, ...], Field(min_length=1), AfterValidator(sort_loops)] = key(
        (1, 2, 4, 8, 16), "Numbers of sequences. Keys and values of the largest are allocated at once.", source="ours"
    )
    prompt_tokens: Count = key(
        32, "Tokens at the beginning of each sequence that are read untimed; at most half the context.", source="ours"
    )
    tokens: Count = key(
        32, "Tokens behind them in each sequence that are decoded; fewer where the context ends.", source="ours"
    )
    repeats: Count = key(3, "Timed repeats.", source="ours")
    cpu_threads: Count = key(2, "Threads on CPU, the same for every number of sequences.", source="ours")


class PathTypesConfig(Section):
    """Criteria for the types of a token's path: converging, orbiting or sliding, tested in this order, else undecided.

    [G] names the types but gives no criteria.
    """

    window: AtLeastTwo = key(16, "Last loop steps of a trajectory, which determine the type.", source="ours")
    converging_rate: Share = key(
        0.95,
        "Converging: the fitted ratio of successive step norms is at most this value, or the last step is a rounding "
        "error.",
        source="ours",
    )
    max_period: AtLeastTwo = key(8, "Orbiting: the state returns after 2 to max_period loop steps.", source="ours")
    return_tolerance: Share = key(
        0.25, "Orbiting: maximum mean distance of a return, as a fraction of the mean step norm.", source="ours"
    )
    straightness: Share = key(
        0.5,
        "Sliding: minimum distance between the ends of the window, as a fraction of the window's path length.",
        source="ours",
    )

    @model_validator(mode="after")
    def _check_period(self) -> Self:
        if self.max_period > self.window:
            raise InputError(
                f"config key path_types.max_period: found {self.max_period}, expected at most path_types.window = "
                f"{self.window}."
            )
        return self


class PathIndependenceConfig(Section):
    """Repeated loops from other noise, with the number of loop steps of trajectories.loops."""

    draws: Count = key(3, "Additional draws of the noise, each compared with the run's own draw.", source="ours")
    tokens: Count = key(2048, "Held-out tokens per checkpoint, in whole sequences.", source="ours")


class SpectrumConfig(Section):
    """Eigenvalues of loop steps at their fixed points, in float64, for every checkpoint (results/spectrum.pdf)."""

    tokens: Count = key(
        4096,
        "Held-out tokens per checkpoint whose paths are followed to their fixed points, in whole sequences.",
        source="ours",
    )
    exact_tokens: Count = key(
        2048,
        "Held-out tokens among these whose own blocks are computed, in whole sequences. Two further paths are run for "
        "each: with all earlier tokens held, and with one token slowed.",
        source="ours",
    )
    checkpoints: Literal["all", "last"] = key("all", "Checkpoints to analyse.", source="ours")
    steps: AtLeastTwo = key(
        512,
        "Maximum number of loop steps to a fixed point. A token whose update, or that of an earlier token, then is "
        "above the rounding floor has none.",
        source="ours",
    )
    window: Annotated[int, Field(ge=4), Number] = key(
        16,
        "Last updates of a path above the rounding floor, from which its rate and its angle are measured; at most the "
        "second half of the path.",
        source="ours",
    )
    tolerance: Share = key(
        1e-3,
        "Threshold of the column loops: a step norm below this fraction of the norm of the state, as for the criterion "
        "step_norm_relative.",
        source="ours",
    )
    dense_size: Count = key(
        256,
        "Largest model.hidden_size at which all eigenvalues of a block are computed. Beyond, Arnoldi's method finds "
        "the leading one.",
        source="ours",
    )
    slowed_position: Natural = key(
        4, "Position of the token that is slowed in every sequence; less than model.context_length - 1.", source="ours"
    )
    slow_factor: Share = key(0.2, "Fraction of each of its steps that the slowed token takes.", source="ours")
    batch_size: Count = key(2, "Sequences at a time; limits the memory.", source="ours")
    dtype: Literal["float64"] = key(
        "float64", "Precision. In float32 a path ends at the rounding floor before its angle settles.", source="ours"
    )


VARIANT_OVERRIDES = {
    "train": {"iterations": 5000, "checkpoint_every": 5000, "early_checkpoints": [], "lr_decay_iterations": 5000}
}


# more checkpoints than those of the variants: the question is also when the angles are where the paper has them
STARTS_OVERRIDES = {
    "train": {"iterations": 5000, "checkpoint_every": 5000, "early_checkpoints": [500, 1000, 2000]}
    | {"lr_decay_iterations": 5000}
}


class VariantsConfig(Section):
    """Choices where the paper is open. `snakemake variants` trains the model under every combination of them."""

    sandwich: Annotated[tuple[Sandwich, ...], *Distinct] = key(
        ("post_residual", "branch"), "Values of model.sandwich.", source="ours"
    )
    adapter_init: Annotated[tuple[AdapterInit, ...], *Distinct] = key(
        ("random", "blend"), "Values of model.adapter_init.", source="ours"
    )
    state_init: Annotated[tuple[StateInit, ...], *Distinct] = key(
        ("noise", "input"), "Values of model.state_init.", source="ours"
    )
    overrides: dict[str, Any] = key(
        VARIANT_OVERRIDES, "Config sections of these runs, which take precedence over all other layers.", source="ours"
    )


class StartsConfig(Section):
    """Starts of the projection. `snakemake starts` trains the model from each, under each first state and norm."""

    shares: Annotated[tuple[WholeShare, ...], *Unique] = key(
        (0.0, 0.25, 0.5, 0.75, 1.0), "Values of model.adapter_share, with adapter_init: blend.", source="ours"
    )
    random: Flag = key(True, "Whether adapter_init: random is beside them.", source="ours")
    state_init: Annotated[tuple[StateInit, ...], *Distinct] = key(
        ("noise", "input"), "Values of model.state_init.", source="ours"
    )
    sandwich: Annotated[tuple[Sandwich, ...], *Distinct] = key(
        ("post_residual", "branch"), "Values of model.sandwich.", source="ours"
    )
    overrides: dict[str, Any] = key(
        STARTS_OVERRIDES, "Config sections of these runs, which take precedence over all other layers.", source="ours"
    )

    @model_validator(mode="after")
    def _check_starts(self) -> Self:
        if not self.shares and not self.random:
            raise InputError(
                "config key starts.shares: found none, expected at least one unless starts.random is true."
            )
        return self


class ControlsConfig(Section):
    """Models without loops beside the looped one: of the same parameters, and of the same training FLOPs per token.

    `snakemake controls` trains them on the same batches under every seed, and compares held-out cross-entropies.
    """

    overrides: dict[str, Any] = key(
        {},
        "Config sections of these runs, which take precedence over all other layers. With any, the looped model is "
        "trained again under them; without, it is the run itself.",
        source="ours",
    )


# --- the whole config -----------------------------------------------------------------------------------------------


class Derived:
    """Values derived from several sections. A job that needs one has it in its slice, by its name."""

    def _sequences(self, tokens: int) -> int:
        return whole_sequences(tokens, self.model.context_length)

    @property
    def trajectory_sequences(self) -> int:
        """Whole sequences in trajectories.tokens, at least one."""
        return self._sequences(self.trajectories.tokens)

    @property
    def quality_sequences(self) -> int:
        """Whole sequences in exits.quality_tokens, at least one."""
        return self._sequences(self.exits.quality_tokens)

    @property
    def scaling_sequences(self) -> int:
        """Whole sequences in scaling.tokens, at least one."""
        return self._sequences(self.scaling.tokens)

    @property
    def lens_sequences(self) -> int:
        """Whole sequences in lens.tokens, at least one."""
        return self._sequences(self.lens.tokens)

    @property
    def lens_steps(self) -> tuple[int, ...]:
        """The loop steps that the lens decodes, ascending."""
        last = max(self.model.typical_loops, round(self.lens.max_multiple * self.model.mean_loops))
        grid = {count << shift for count in (2, 3) for shift in range(last.bit_length())}
        return tuple(sorted({0, 1, self.model.typical_loops, last, *(k for k in grid if k < last)}))

    @property
    def lens_other_loops(self) -> int:
        """Loop steps of the groups before and behind the one that the lens decodes."""
        return self.lens.other_loops or self.model.typical_loops

    @property
    def oracle_sequences(self) -> int:
        """Whole sequences in oracle.tokens, at least one."""
        return self._sequences(self.oracle.tokens)

    @property
    def pareto_sequences(self) -> int:
        """Whole sequences in pareto.quality_tokens, at least one."""
        return self._sequences(self.pareto.quality_tokens)

    @property
    def probe_sequences(self) -> int:
        """Whole sequences in probe.tokens, at least one."""
        return self._sequences(self.probe.tokens)

    @property
    def calibration_sequences(self) -> int:
        """Whole sequences in calibration.tokens, at most those of the held-out text, at least one."""
        available = (self.data.held_out_tokens - 1) // self.model.context_length
        return max(1, min(self._sequences(self.calibration.tokens), available))

    @property
    def independence_sequences(self) -> int:
        """Whole sequences in path_independence.tokens, at least one."""
        return self._sequences(self.path_independence.tokens)

    @property
    def spectrum_sequences(self) -> int:
        """Whole sequences in spectrum.tokens, at least one."""
        return self._sequences(self.spectrum.tokens)

    @property
    def exact_sequences(self) -> int:
        """Whole sequences in spectrum.exact_tokens, at least one, at most spectrum_sequences."""
        return min(self._sequences(self.spectrum.exact_tokens), self.spectrum_sequences)

    @property
    def loop_grid(self) -> tuple[int, ...]:
        """The loop counts of scaling.loops below exits.max_loops, and exits.max_loops."""
        return (*(loops for loops in self.scaling.loops if loops < self.exits.max_loops), self.exits.max_loops)

    @property
    def dense_exits(self) -> ExitsConfig:
        """The exit benchmark of the Pareto figure: pareto.criteria over exits.criteria, `fixed` at every loop count."""
        fixed = CriterionConfig(thresholds=self.loop_grid)
        criteria = {**self.exits.criteria, **self.pareto.criteria, "fixed": fixed}
        return self.exits.model_copy(update={**vars(self.pareto), "criteria": criteria})

    @property
    def calibrated_exits(self) -> ExitsConfig:
        """The settings of exits with the criteria of calibration."""
        return self.exits.model_copy(update={"criteria": self.calibration.criteria})

    @property
    def throughput_exits(self) -> ExitsConfig:
        """The exits of the throughput benchmark: throughput.criteria, and all loop steps as `fixed`."""
        fixed = CriterionConfig(thresholds=(self.exits.max_loops,))
        update = {"criteria": {"fixed": fixed, **self.throughput.criteria}, "readout": "head", "kv_slots": None}
        return self.exits.model_copy(update=update)

    @property
    def throughput_tokens(self) -> tuple[int, int]:
        """Tokens of a prompt and those that follow it in the throughput benchmark, within model.context_length."""
        room = self.model.context_length
        prompt = max(1, min(self.throughput.prompt_tokens, room // 2))
        return prompt, min(self.throughput.tokens, room - prompt)


class Config(Derived, Section):
    """All sections of one run."""

    seed: Natural = key(
        1337, "Seed of batches, loop counts and noise, which are functions of (seed, iteration).", source="ours"
    )
    seeds: Annotated[tuple[Natural, ...], *Unique] = key(
        (), "Further seeds, under which the run and every run of a study are trained and analysed too.", source="ours"
    )
    compute: ComputeConfig = ComputeConfig()
    data: DataConfig = DataConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    trajectories: TrajectoriesConfig = TrajectoriesConfig()
    exits: ExitsConfig = ExitsConfig()
    figures: FiguresConfig = FiguresConfig()
    explore: ExploreConfig = ExploreConfig()
    scaling: ScalingConfig = ScalingConfig()
    lens: LensConfig = LensConfig()
    pareto: ParetoConfig = ParetoConfig()
    oracle: OracleConfig = OracleConfig()
    probe: ProbeConfig = ProbeConfig()
    calibration: CalibrationConfig = CalibrationConfig()
    promises: PromisesConfig = PromisesConfig()
    throughput: ThroughputConfig = ThroughputConfig()
    path_types: PathTypesConfig = PathTypesConfig()
    path_independence: PathIndependenceConfig = PathIndependenceConfig()
    spectrum: SpectrumConfig = SpectrumConfig()
    download: DownloadConfig = DownloadConfig()
    variants: VariantsConfig = VariantsConfig()
    starts: StartsConfig = StartsConfig()
    controls: ControlsConfig = ControlsConfig()

    @model_validator(mode="after")
    def _set_vocab_size(self) -> Self:
        model = self.model.model_copy(update={"vocab_size": self.tokenizer.num_ids})
        object.__setattr__(self, "model", model)  # the class is frozen for everyone else
        return self

    @model_validator(mode="after")
    def _check_published(self) -> Self:
        if (self.model.source == "published") != (self.tokenizer.name == "published"):
            raise InputError(
                f"config key tokenizer.name: found {self.tokenizer.name}, expected "
                f"{'published' if self.model.source == 'published' else 'another tokenizer'} for model.source: "
                f"{self.model.source}."
            )
        if self.model.injection == "none" and self.train.backprop_depth is not None:
            raise InputError(
                f"config key train.backprop_depth: found {self.train.backprop_depth}, expected null for "
                "model.injection: none, where a truncated gradient reaches nothing before the loop."
            )
        return self

    @model_validator(mode="after")
    def _check_exit_gate(self) -> Self:
        for key in ("exits", "pareto", "calibration", "throughput"):
            if "exit_gate" in getattr(self, key).criteria and not self.model.exit_gate:
                raise InputError(
                    f"config key {key}.criteria.exit_gate: found the criterion, expected a model with "
                    "model.exit_gate: true."
                )
        if self.train.exit_gate is not None and not (self.model.exit_gate and len(self.model.groups) == 1):
            found = f"model.exit_gate: {str(self.model.exit_gate).lower()} and {len(self.model.groups)} looped groups"
            raise InputError(
                f"config key train.exit_gate: found {found}, expected model.exit_gate: true and one looped group; the "
                "criterion probe learns exits from several."
            )
        return self

    @model_validator(mode="after")
    def _check_probe(self) -> Self:
        for key in ("exits", "pareto", "calibration", "throughput"):
            if "probe" in getattr(self, key).criteria and self.model.source != "trained":
                raise InputError(
                    f"config key {key}.criteria.probe: found the criterion for a published model, expected a model "
                    "that is trained here: the probe is fitted on training text."
                )
        return self

    @model_validator(mode="after")
    def _check_path(self) -> Self:
        if self.data.source in FILE_SOURCES and not self.data.path:
            raise InputError(
                f"config key data.path: found nothing, expected a file or a folder of files, because data.source is "
                f"{self.data.source!r}."
            )
        return self

    @model_validator(mode="after")
    def _check_criteria(self) -> Self:
        for key in ("pareto", "calibration", "throughput"):
            check_criteria(f"{key}.criteria", getattr(self, key).criteria, self.exits.max_loops)
        return self

    @model_validator(mode="after")
    def _check_held_out_tokens(self) -> Self:
        sequences = self._held_out_sequences()
        key = max(sequences, key=sequences.__getitem__)
        least = sequences[key] * self.model.context_length + 1
        if self.data.held_out_tokens < least:
            raise InputError(
                f"config key data.held_out_tokens: found {self.data.held_out_tokens}, expected at least {least} "
                f"tokens, which {key} requires."
            )
        return self

    def _held_out_sequences(self) -> dict[str, int]:
        """Held-out sequences that each stage reads, by the key that determines their number."""
        trained = self.model.source == "trained"
        return ({"train.held_out_sequences": self.train.held_out_sequences} if trained else {}) | {
            "trajectories.tokens": self.trajectory_sequences,
            "path_independence.tokens": self.independence_sequences,
            "spectrum.tokens": self.spectrum_sequences,
            "exits.quality_tokens": self.quality_sequences,
            "exits.latency_repeats": self.exits.latency_repeats,
            "scaling.tokens": self.scaling_sequences,
            "lens.tokens": self.lens_sequences,
            "pareto.quality_tokens": self.pareto_sequences,
            "pareto.latency_repeats": self.pareto.latency_repeats,
            "oracle.tokens": self.oracle_sequences,
            "throughput.sequences": self.throughput.sequences[-1],
        }

    @model_validator(mode="after")
    def _check_latency_tokens(self) -> Self:
        for section in ("exits", "pareto"):
            tokens = getattr(self, section).latency_tokens
            if tokens > self.model.context_length:
                raise InputError(
                    f"config key {section}.latency_tokens: found {tokens}, expected at most model.context_length = "
                    f"{self.model.context_length}."
                )
        return self

    @model_validator(mode="after")
    def _check_slowed_position(self) -> Self:
        if self.spectrum.slowed_position + 1 >= self.model.context_length:
            raise InputError(
                f"config key spectrum.slowed_position: found {self.spectrum.slowed_position}, expected less than "
                f"model.context_length - 1 = {self.model.context_length - 1}."
            )
        return self

    @model_validator(mode="after")
    def _check_trajectories(self) -> Self:
        places = {
            "trajectories.states_sequence": self.trajectories.states_sequence,
            "explore.sequence": self.explore.sequence,
        }
        for name, sequence in places.items():
            if sequence >= self.trajectory_sequences:
                raise InputError(
                    f"config key {name}: found {sequence}, expected less than {self.trajectory_sequences}, the number "
                    "of sequences in trajectories.tokens."
                )
        if self.path_types.window > self.trajectories.loops:
            raise InputError(
                f"config key path_types.window: found {self.path_types.window}, expected at most trajectories.loops "
                f"= {self.trajectories.loops}."
            )
        return self


SECTIONS: dict[str, type[Section]] = {
    name: field.annotation for name, field in Config.model_fields.items() if name not in ("seed", "seeds")
}
