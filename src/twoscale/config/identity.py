"""Values that the workflow derives from a config: checkpoint schedule, identities, text quota, labels.

This module imports no config class at run time, because the classes use it for their own checks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twoscale.base import one_line

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    from twoscale.config.sections import Config, DataConfig, TokenizerConfig, TrainConfig

# Characters to collect for one held-out token of a BPE tokenizer, whose tokens cannot be counted before it is trained:
# twice what GPT-2's tokenizer takes in English.
CHARACTERS_PER_TOKEN = 9

# Keys of `train` that control how far a run goes and how it is cut, monitored and distributed, but not what it
# computes. No checkpoint identity contains them, so a longer run, or one on more processes, continues another.
RUNTIME_KEYS = frozenset(
    {
        "iterations",
        "checkpoint_every",
        "early_checkpoints",
        "save_seconds",
        "log_every",
        "print_seconds",
        "micro_batches",
        "processes",
        "nodes",
        "shard",
        "recompute",
        "prefetch",
        "peak_tflops",
    }
)

FILE_SOURCES = ("txt", "jsonl", "parquet")  # values of data.source that read data.path

# Keys of `data` that do not affect which text the source has and which documents are held out: those that limit how
# much text is collected, and the one that applies to tokens.
QUOTA_KEYS = ("train_characters", "train_tokens", "held_out_tokens", "held_out_margin")
TOKEN_KEYS = ("near_duplicate_tokens",)


def complete(section: BaseModel) -> dict[str, Any]:
    """A section as a JSON-able dict with every key: tuples become lists, nested sections become dicts."""
    return section.model_dump(mode="json", by_alias=True, serialize_as_any=True)


def plain(section: BaseModel) -> dict[str, Any]:
    """A section as a JSON-able dict without optional keys at their default."""
    values = complete(section)
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if is_optional(field) and value == field.default:
            del values[name]
        elif hasattr(value, "model_dump"):
            values[name] = plain(value)
    return values


def absent_values(*sections: BaseModel) -> list[dict[str, Any]]:
    """Keys that `plain` leaves out of each section: the optional ones, with their defaults."""
    return [{k: v.default for k, v in type(s).model_fields.items() if is_optional(v)} for s in sections]


def is_optional(field: FieldInfo) -> bool:
    """Whether the key may be absent from a section of a slice or an identity, and then has its default."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("optional"))


def whole_sequences(tokens: int, context_length: int) -> int:
    """Number of whole sequences of `context_length` in `tokens`, at least one."""
    return max(1, tokens // context_length)


def init_name(adapter_init: str, adapter_share: float) -> str:
    """Name of an adapter initialisation in tables and names of runs: "random", or the share of the state, "0.25"."""
    return adapter_init if adapter_init == "random" else str(adapter_share).removesuffix(".0")


def checkpoint_iterations(train: TrainConfig) -> list[int]:
    """Iterations with a checkpoint, ascending; iteration 0, the untrained model, is not included.

    Prefix-stable: a larger `iterations` only appends, because neither the early checkpoints nor the grid depend on it.
    """
    grid = range(train.checkpoint_every, train.iterations + 1, train.checkpoint_every)
    early = (iteration for iteration in train.early_checkpoints if 0 < iteration <= train.iterations)
    return sorted({*grid, *early})


def training_identity(config: Config) -> dict[str, Any]:
    """Everything that the weights of a checkpoint depend on, except its iteration and its text."""
    device = config.compute.device
    train = {key: value for key, value in plain(config.train).items() if key not in RUNTIME_KEYS}
    return {
        "seed": config.seed,
        "device": device,
        "model": plain(config.model),
        "train": train | {"compile": config.train.compiles(device), "precision": config.train.precision_on(device)},
    }


def runtime(config: Config) -> dict[str, Any]:
    """The keys of `train` that training_identity leaves out."""
    return {key: value for key, value in plain(config.train).items() if key in RUNTIME_KEYS}


@dataclass(frozen=True)
class TextQuota:
    """How much training and held-out text to collect, in `unit` ("tokens" or "characters"); None: no limit."""

    unit: str
    training: int | None
    held_out: int | None


def text_quota(data: DataConfig, tokenizer: TokenizerConfig) -> TextQuota:
    """The quota in tokens for GPT-2's tokenizer, which exists before the text, otherwise in characters."""
    held_out = math.ceil(data.held_out_margin * data.held_out_tokens)
    if tokenizer.name == "published":  # nothing is trained
        return TextQuota("characters", 0, CHARACTERS_PER_TOKEN * held_out)
    if tokenizer.name == "gpt2":
        return TextQuota("tokens", data.train_tokens, held_out)
    characters = {"bytes": 1, "bpe": CHARACTERS_PER_TOKEN}[tokenizer.name]
    return TextQuota("characters", data.train_characters, characters * held_out)


def text_source(data: DataConfig) -> dict[str, Any]:
    """The section `data` with the keys that do not affect the text at their defaults."""
    unused = () if data.source in FILE_SOURCES else ("piece_characters",)
    return plain(data) | {key: type(data).model_fields[key].default for key in (*QUOTA_KEYS, *TOKEN_KEYS, *unused)}


def text_label(data: DataConfig) -> str:
    """Name of the text in figures and captions, one line of harmless characters."""
    match data.source:
        case "fineweb":
            return one_line(f"FineWeb {data.subset}")
        case "txt" | "jsonl" | "parquet":
            assert data.path is not None
            return one_line(f"{data.source} {data.path.rstrip('/').rpartition('/')[2]}")
        case _:
            return "Python documentation"
