"""A trained run or a published model, opened from its files without any config."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from twoscale.base import InputError, first_line
from twoscale.config import Config, ConfigSlice, ModelConfig
from twoscale.config.types import check_json
from twoscale.data.shards import read_metadata
from twoscale.data.tokenizer import Tokenizer, load_tokenizer
from twoscale.jobs.machine import check_cuda
from twoscale.model.checkpoints import CHECKPOINT, load_model, read_header
from twoscale.model.interface import LoopedModel, any_weight
from twoscale.model.noise import EvaluationNoise
from twoscale.model.published.folder import CONFIG, PublishedFolder
from twoscale.model.published.weights import open_published

_TOKENS = "data/tokens.json"  # metadata of a run's text

Text = str | Sequence[int] | Tensor  # a text, or token ids (T,) or (B, T)


@dataclass(frozen=True)
class _Tokens:
    """The keys that are read of the metadata of a run's tokens."""

    tokenizer: str
    digest: str


@dataclass(frozen=True)
class TrainedRun:
    """A model with its tokenizer, as `open_run` returns it.

    Attributes:
        model: The looped model, for evaluation.
        tokenizer: Tokenizer of the model.
        seed: Seed of the training and of the noise.
        iteration: Training iteration of the weights; 0 for a published model.
        folder: Folder of the run, or of the published model.
    """

    model: LoopedModel
    tokenizer: Tokenizer
    seed: int
    iteration: int
    folder: Path

    def tokens(self, text: Text) -> Tensor:
        """Token ids (B, T) of a text, or given ids (T,) or (B, T), on the device of the model.

        A text has B = 1. Raises InputError for an empty text, and for ids of another shape, type or
        vocabulary.
        """
        expected = "a text of at least one token, or integer ids (T,) or (B, T)"
        try:
            ids = torch.as_tensor(self.tokenizer.encode(text) if isinstance(text, str) else text)
        except (TypeError, ValueError, RuntimeError) as error:
            found = type(text).__name__
            raise InputError(f"tokens: found {found}, expected {expected}.") from error
        is_integer = not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
        if not ids.numel() or ids.dim() not in (1, 2) or not is_integer:
            found = f"{ids.dtype} values of shape {tuple(ids.shape)}"
            raise InputError(f"tokens: found {found}, expected {expected}.")
        largest = self.model.config.vocab_size - 1
        if ids.min() < 0 or ids.max() > largest:
            raise InputError(
                f"tokens: found ids from {ids.min()} to {ids.max()}, expected ids from 0 to"
                f" {largest}."
            )
        # (T,) becomes (1, T)
        return ids.long().view(-1, ids.shape[-1]).to(any_weight(self.model).device)

    def context(self, text: Text) -> Tensor:
        """`tokens` (B, T) that fit the model's context. Raises InputError for a longer text."""
        tokens, longest = self.tokens(text), self.model.config.context_length
        if tokens.shape[1] > longest:
            raise InputError(
                f"text: found {tokens.shape[1]} tokens, expected at most {longest}, the model's"
                f" context_length; run.tokens(text)[:, :{longest}] gives the first ones."
            )
        return tokens

    def loops(self, loops: int | Sequence[int] | None = None) -> list[int]:
        """Loop steps of each group, from one number for all, one for each, or None for the mean of
        the training.
        """
        labels = self.model.config.group_labels
        if loops is None:
            loops = self.model.config.typical_loops
        counts = [loops] * len(labels) if isinstance(loops, int) else loops
        is_list = isinstance(counts, Sequence) and len(counts) == len(labels)
        # `type`, because True is an instance of int
        if not is_list or any(type(count) is not int or count < 1 for count in counts):
            each = f"one for each of the {len(labels)} groups {', '.join(labels)}"
            raise InputError(
                f"loops: found {loops!r}, expected a whole number of at least 1, or a list with"
                f" {each}."
            )
        return list(counts)

    def logits(self, text: Text, loops: int | Sequence[int] | None = None) -> Tensor:
        """Logits (B, T, V) of the next tokens; the arguments and errors are those of `trace`."""
        tokens = self.context(text)
        noise = self.noise(range(len(tokens)))
        return self.model.readout(self.model.hidden_states(tokens, self.loops(loops), noise))

    def trace(self, text: Text, loops: int | Sequence[int] | None = None) -> dict[str, Tensor]:
        """The hidden states of a text, stage by stage in the order of the model.

        Args:
            text: A text, or token ids (T,) or (B, T).
            loops: Loop steps: one number for all groups, or one for each. None: the mean of the
                training, rounded.

        Returns:
            Name of the stage -> states (K + 1, B, T, C): x^0 … x^K of a looped group under its
            label, such as "5-6"; one state, (1, B, T, C), for "embedding" and for each unlooped
            layer, such as "layer 1".

        Raises:
            InputError: for a text that is longer than the context, and for wrong loop steps or
                token ids.

        Example:
            >>> states = run.trace("Return the value", loops=12)["5-6"]  # (13, 1, T, C)
            >>> steps = states.diff(dim=0).norm(dim=-1)  # ||x^{k+1} - x^k||, (12, 1, T)
        """
        tokens = self.context(text)
        noise = self.noise(range(len(tokens)))
        states = {}
        for trace in self.model.trace(tokens, self.loops(loops), noise):
            if trace.stage is None:
                name = "embedding"
            elif trace.stage.is_group:
                name = self.model.config.group_labels[trace.stage.index]
            else:
                name = f"layer {trace.stage.layer}"
            states[name] = torch.stack(trace.states)  # (K + 1, B, T, C)
        return states

    def noise(self, sequence: int | Sequence[int] = 0) -> EvaluationNoise:
        """The noise of held-out sequences with these numbers; other text uses 0, 1, …"""
        sequences = [sequence] if isinstance(sequence, int) else sequence
        return EvaluationNoise.of(self.model.config, self.seed, sequences)


def open_run(
    folder: str | PathLike[str],
    iteration: int | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    context_length: int = 1024,
) -> TrainedRun:
    """Open a model with its tokenizer: a checkpoint of a run, or a published model.

    No config is needed: a checkpoint contains the config of the model. The tokenizer of
    a run is checked against its training text.

    Args:
        folder: Folder of the run, such as "results/demo", or of a published model with its
            config.json.
        iteration: Training iteration of the checkpoint; None: the last one. Not for a
            published model, which has one.
        device: "cpu" or "cuda".
        dtype: Type of the weights and states.
        context_length: Context of a published model in tokens, at most as published; for a run it
            is fixed.

    Raises:
        InputError: if the run or the checkpoint does not exist, or the files are damaged or do not
            belong together.

    Example:
        >>> run = twoscale.open_run("results/demo", iteration=240)
        >>> logits = run.logits("Return the value")  # (1, T, V)
        >>> states = run.trace("Return the value", loops=12)
    """
    folder = Path(folder)
    if device == "cuda":
        check_cuda("device")
    if (folder / CONFIG).is_file():  # a published model
        tokenizer = load_tokenizer("published", folder / "tokenizer.json")
        return open_published_run(folder, tokenizer, context_length, device, dtype)
    path = _checkpoint(folder, iteration)
    identity = read_header(path).identity
    config = ConfigSlice(identity)
    try:
        # every key has to be there: a default of this version need not be that of the run
        model_config = check_json(config.model, ModelConfig)
        seed = check_json(config.seed, int)
    except (InputError, AttributeError, ValueError) as error:
        raise InputError(
            f"{path}: found a header from another version of this project ({first_line(error)}),"
            " expected the seed and every key of the model's config."
        ) from error
    tokenizer = _tokenizer(folder, path, identity, model_config.vocab_size)
    model, header = load_model(path, model_config, dtype, device)
    return TrainedRun(model, tokenizer, seed, header.iteration, folder)


def open_published_run(
    folder: Path,
    tokenizer: Tokenizer,
    context_length: int,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> TrainedRun:
    """The published model in `folder` as a run with one checkpoint, iteration 0, and the default
    seed of the config.

    Its context has `context_length` tokens, at most as many as were published: a cache is allocated
    for all of them.
    """
    source = PublishedFolder(folder)
    longest = source.description.max_context_length
    config = source.model_config(context_length=min(context_length, longest))
    model = open_published(folder, config, dtype, device)
    return TrainedRun(model, tokenizer, Config().seed, 0, folder)


def _checkpoint(folder: Path, iteration: int | None) -> Path:
    """The weights of a run at an iteration, or the last ones."""
    checkpoints = folder / "checkpoints"
    files = sorted(checkpoints.iterdir()) if checkpoints.is_dir() else []
    # by iteration; the folder has optimizer states too
    weights = {int(found[1]): path for path in files if (found := CHECKPOINT.fullmatch(path.name))}
    if not weights:
        absolute = folder.absolute()
        runs = sorted(path.parent.name for path in absolute.parent.glob("*/checkpoints"))
        raise InputError(
            f"run {absolute.name!r}: found no checkpoint in {absolute}, expected one of the runs"
            f" {', '.join(runs) or '(none)'}, or the folder of a published model with its {CONFIG}."
        )
    if iteration is None:
        iteration = max(weights)
    if iteration not in weights:
        known = ", ".join(map(str, sorted(weights)))
        raise InputError(
            f"{checkpoints}: found no checkpoint of iteration {iteration}, expected one of {known}."
        )
    return weights[iteration]


def _gpt2_file(folder: Path) -> Path:
    """GPT-2's tokenizer, which all runs share: in resources/, or in results/, where earlier
    versions kept it. Runs of studies are in folders of results/, such as results/variants.
    """
    for parent in folder.absolute().parents:
        for place in (parent, parent / "resources"):
            if (file := place / "gpt2.tiktoken").exists():
                return file
    return folder.parent.parent / "resources" / "gpt2.tiktoken"


def _shared_tokens(folder: Path, digest: str | None) -> Path | None:
    """Metadata of the text with this digest at another run: runs on the same text share its folder.

    Runs of studies are in folders of results/, such as results/variants. What cannot be read, such
    as metadata of an earlier version, is of another text.
    """
    for results in folder.absolute().parents[:2]:
        for path in sorted(results.glob(f"*/{_TOKENS}")):
            with suppress(InputError):
                if read_metadata(path, _Tokens).digest == digest:
                    return path
    return None


def _tokenizer(
    folder: Path, checkpoint: Path, identity: dict[str, Any], vocab_size: int
) -> Tokenizer:
    """The run's tokenizer, refused if the model was trained with another one or on another text."""
    path = folder / _TOKENS
    if not path.exists():
        path = _shared_tokens(folder, identity.get("data")) or path
    metadata = read_metadata(path, _Tokens)
    is_gpt2 = metadata.tokenizer == "gpt2"
    file = _gpt2_file(folder) if is_gpt2 else path.with_name("tokenizer.json")
    tokenizer = load_tokenizer(metadata.tokenizer, file)
    # the text may have been prepared again, otherwise, since the training
    if tokenizer.vocab_size != vocab_size or metadata.digest != identity.get("data"):
        raise InputError(
            f"{checkpoint}: found a model of {vocab_size} token ids and the text"
            f" {identity.get('data')}, expected {tokenizer.vocab_size} and {metadata.digest} as in"
            f" {path}."
        )
    return tokenizer
