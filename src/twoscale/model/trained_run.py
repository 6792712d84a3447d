"""A trained run or a published model, opened from its files without any config."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from twoscale.config import Config, ConfigSlice, ModelConfig
from twoscale.data.token_files import read_metadata
from twoscale.data.tokenizer import Tokenizer, load_tokenizer
from twoscale.errors import InputError, first_line
from twoscale.json import checked
from twoscale.model.checkpoints import CHECKPOINT, load_model, read_header
from twoscale.model.interface import LoopedModel, any_weight
from twoscale.model.noise import EvaluationNoise
from twoscale.model.published.folder import PublishedFolder
from twoscale.model.published.weights import open_published


@dataclass(frozen=True)
class _Tokens:
    """What is read here of the metadata of a run's tokens."""

    tokenizer: str
    digest: str


@dataclass(frozen=True)
class TrainedRun:
    """A model to use, with its tokenizer and the seed and iteration of its checkpoint."""

    model: LoopedModel
    tokenizer: Tokenizer
    seed: int
    iteration: int

    def tokens(self, text: str) -> Tensor:
        """Token ids (1, T) of a text, on the device of the model."""
        return torch.tensor([self.tokenizer.encode(text)], device=any_weight(self.model).device)

    def noise(self, sequence: int = 0) -> EvaluationNoise:
        """The noise of a held-out sequence; other text uses sequence 0."""
        return EvaluationNoise.of(self.model.config, self.seed, [sequence])


def open_run(results: str | Path, run: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> TrainedRun:
    """The last checkpoint of `run` under the folder `results`, with its tokenizer.

    The checkpoint carries the model's config; the tokenizer is checked to be the one of the training text.
    """
    results = Path(results)
    path = last_checkpoint(results, run)
    identity = read_header(path).identity
    config = ConfigSlice(identity)
    try:
        model_config, seed = checked(config.model, ModelConfig), checked(config.seed, int)
    except (InputError, AttributeError, ValueError) as error:
        raise InputError(
            f"{path}: found a header from another version of this project ({first_line(error)}), expected the "
            "seed and every key of the model's config."
        ) from error
    tokenizer = _tokenizer(results, run, path, identity, model_config.vocab_size)
    model, header = load_model(path, model_config, dtype, device)
    return TrainedRun(model, tokenizer, seed, header.iteration)


def open_published_run(
    folder: Path, tokenizer: Tokenizer, context_length: int, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> TrainedRun:
    """The published model in `folder` as a run with one checkpoint, iteration 0.

    Its context has `context_length` tokens, at most as many as were published: a cache is allocated for all of them.
    Initial states are random with the default seed of the config.
    """
    source = PublishedFolder(folder)
    config = source.model_config(context_length=min(context_length, source.defaults.max_context_length))
    return TrainedRun(open_published(folder, config, dtype, device), tokenizer, Config().seed, 0)


def last_checkpoint(results: Path, run: str) -> Path:
    """The weights of the last iteration of `run`."""
    folder = results / run / "checkpoints"
    if not results.is_dir():
        raise InputError(
            f"option --results: no folder {results.absolute()}, expected the folder of the runs; relative paths start "
            "at the current folder."
        )
    if not folder.is_dir():
        raise InputError(_unknown_run(results, run))
    weights = sorted(path for path in folder.iterdir() if CHECKPOINT.fullmatch(path.name))
    if not weights:
        raise InputError(f"{folder}: found no checkpoint, expected iteration_000000.safetensors or a later one.")
    return weights[-1]


def _unknown_run(results: Path, run: str) -> str:
    """A sentence about a run without checkpoints."""
    if (results / run / "data").is_dir():
        models = ", ".join(str(path.parent) for path in sorted(results.glob("models/*/config.json")))
        where = models or "model.folder of its config"
        return (
            f"run {run!r}: found no checkpoint of a model trained here, expected that training has begun, or for a "
            f"published model --model with its folder ({where}) in place of --run."
        )
    known = sorted(path.parent.name for path in results.glob("*/checkpoints"))
    folder = (results / run / "checkpoints").absolute()
    return f"run {run!r}: found no folder {folder}, expected one of the runs {', '.join(known) or '(none)'}."


def _tokenizer(results: Path, run: str, checkpoint: Path, identity: dict[str, Any], vocab_size: int) -> Tokenizer:
    """The run's tokenizer, refused if the model was trained with another one or on another text."""
    metadata_path = results / run / "data" / "tokens.json"
    metadata = read_metadata(metadata_path, _Tokens)
    name = metadata.tokenizer
    file = results / "gpt2.tiktoken" if name == "gpt2" else metadata_path.with_name("tokenizer.json")
    tokenizer = load_tokenizer(name, file)
    if tokenizer.vocab_size != vocab_size:
        raise InputError(
            f"{checkpoint}: found a model of {vocab_size} token ids, expected {tokenizer.vocab_size} as in the "
            f"tokenizer of {metadata_path}."
        )
    if metadata.digest != identity.get("data"):
        raise InputError(
            f"{checkpoint}: was trained on tokens other than those described by {metadata_path}, expected "
            "the checkpoint of this run."
        )
    return tokenizer
