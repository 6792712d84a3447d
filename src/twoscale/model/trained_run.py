"""A trained run as its files describe it, opened without any configuration."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from twoscale import config
from twoscale.model.checkpoints import load_model, read_header
from twoscale.errors import InputError, first_line
from twoscale.model.transformer import LoopedTransformer
from twoscale.data.tokens import Tokenizer, load_tokenizer

CHECKPOINT = re.compile(r"iteration_(\d{6})\.safetensors")


@dataclass(frozen=True)
class TrainedRun:
    model: LoopedTransformer
    tokenizer: Tokenizer
    seed: int
    step: int


def open_run(results: Path, run: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> TrainedRun:
    """The last checkpoint of `run` under the folder `results`, with its tokenizer.

    What the model is stands in the checkpoint; that the tokenizer is the one it was trained with is checked.
    """
    path = last_checkpoint(results, run)
    identity = read_header(path).identity
    try:
        model_config, seed = config.ModelConfig(**identity["model"]), identity["seed"]
    except (TypeError, LookupError) as error:
        raise InputError(
            f"{path}: found a header of another version of this project ({first_line(error)}), expected one with the "
            "seed and every setting of the model."
        ) from error
    tokenizer = _tokenizer(results / run / "data", path, model_config, identity)
    model, header = load_model(path, model_config, dtype, device)
    return TrainedRun(model, tokenizer, seed, header.iteration)


def last_checkpoint(results: Path, run: str) -> Path:
    """The weights of the highest step of `run`."""
    folder = results / run / "checkpoints"
    if not folder.is_dir():
        known = sorted(path.parent.name for path in results.glob("*/checkpoints"))
        raise InputError(
            f"run {run!r}: found no folder {folder}, expected one of the runs {', '.join(known) or '(none)'}."
        )
    weights = sorted(path for path in folder.iterdir() if CHECKPOINT.fullmatch(path.name))
    if not weights:
        raise InputError(f"{folder}: found no checkpoint, expected iteration_000000.safetensors or a later one.")
    return weights[-1]


def _tokenizer(data: Path, checkpoint: Path, model: config.ModelConfig, identity: dict[str, Any]) -> Tokenizer:
    """The run's tokenizer, refused if the model was trained with another one or on another text."""
    metadata_path = data / "tokens.json"
    try:
        metadata = json.loads(metadata_path.read_text(encoding="utf-8"))
        name, digest = metadata["tokenizer"], metadata["digest"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"{metadata_path}: found no description of the run's tokens ({type(error).__name__}), expected the metadata "
            "that tokenize_text writes."
        ) from error
    tokenizer = load_tokenizer(name, data / "tokenizer.json")
    if tokenizer.vocabulary != model.vocab_size:
        raise InputError(
            f"{checkpoint}: found a model of {model.vocab_size} token ids, expected {tokenizer.vocabulary}, those of "
            f"the tokenizer in {data}."
        )
    if digest != identity.get("data"):
        raise InputError(
            f"{checkpoint}: found a model trained on other tokens than those that {metadata_path} describes, expected "
            "the checkpoint of this run."
        )
    return tokenizer
