"""Weights and optimizer states as safetensors files that carry their identity.

One metadata key holds canonical JSON: the kind of the tensors, the iteration, the tokens seen and
the identity of the run (seed, model, training config, digest of the text). It is one key because
safetensors writes several in random order. Time and host are left out, so equal states give equal
files. Nothing is unpickled.

The JSON also holds the SHA-256 of the file, computed with zeros in place of the digest itself. It
is checked when tensors are read.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from importlib import import_module
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import Annotated, Any

import safetensors
import torch
from pydantic import ConfigDict, Field
from safetensors.torch import save_file
from torch import Tensor

from twoscale.base import InputError, canonical_json, first_line, replacing, sha256
from twoscale.config import IMPORTERS, ConfigSlice, ModelConfig, plain
from twoscale.config.types import JsonCount, parse_json
from twoscale.data.batches import HeldOut, open_held_out
from twoscale.jobs.table_job import TableJob
from twoscale.model.interface import LoopedModel, any_weight
from twoscale.model.noise import DrawnNoise, EvaluationNoise
from twoscale.model.registry import architecture, build

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def check_tensors(path: Path, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse tensors of other names, shapes or dtypes than the expected ones, and values that are
    not finite.

    The values of `expected` are not read, so it may be on the device "meta".
    """
    missing, unknown = expected.keys() - found.keys(), found.keys() - expected.keys()
    check_names(path, missing, unknown, "those of the model")
    for name, tensor in found.items():
        wanted = expected[name]
        if tensor.shape != wanted.shape:
            shapes = f"found the shape {tuple(tensor.shape)}, expected {tuple(wanted.shape)}"
            raise InputError(f"{path}: tensor {name}: {shapes}.")
        if tensor.dtype != wanted.dtype:
            dtypes = f"found the dtype {tensor.dtype}, expected {wanted.dtype}"
            raise InputError(f"{path}: tensor {name}: {dtypes}.")
        check_finite(path, name, tensor)


def check_names(path: Path, missing: Set[str], unknown: Set[str], expected: str) -> None:
    """Refuse missing and unknown names of tensors."""
    for problem, names in (("no", missing), ("the unknown", unknown)):
        if names:
            others = f" and {len(names) - 1} others" if len(names) > 1 else ""
            raise InputError(
                f"{path}: found {problem} tensor {min(names)}{others}, expected {expected}."
            )


def check_finite(path: Path, name: str, tensor: Tensor) -> None:
    """Refuse a tensor of floats with NaN or an infinite value, in one pass without a copy."""
    # NaN is both minimum and maximum
    if tensor.numel() and not torch.stack(tensor.aminmax()).isfinite().all():
        raise InputError(
            f"{path}: tensor {name}: found NaN or an infinite value, expected finite numbers."
        )


# --- files

CHECKPOINT = re.compile(r"iteration_(\d{6})\.safetensors")
_METADATA_KEY = "twoscale"
_NO_DIGEST = "0" * 64


@dataclass(frozen=True)
class Header:
    """The description of a file inside it.

    kind: "weights", "optimizer" or "partial". iteration: finished iterations. identity: everything
    that the tensors depend on besides the iteration. sha256: the digest; None in files of versions
    before there was one.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    kind: str
    iteration: JsonCount
    tokens_seen: JsonCount
    identity: dict[str, Any]
    extra: dict[str, Any]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = field(
        default=None, compare=False
    )


def save(path: Path, tensors: Mapping[str, Tensor], header: Header) -> None:
    """Write a file that atomically replaces `path`, with its digest in the header."""
    # zeros as long as a digest, so that writing it moves no byte
    text = canonical_json(vars(header) | {"sha256": _NO_DIGEST})
    # safetensors takes no tensor with gaps
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        save_file(contiguous, temporary, metadata={_METADATA_KEY: text})
        with temporary.open("r+b") as file:  # the digest replaces its zeros
            digest, place = _digest(file, _NO_DIGEST)
            file.seek(place)
            file.write(digest.encode())


def _digest(file: BufferedReader | BufferedRandom, written: str) -> tuple[str, int]:
    """SHA-256 of a safetensors file with zeros for the digest `written` in it, and its place.

    Source of the layout, 8 bytes with the length of the header, the header, the tensors: the README
    of safetensors.
    """
    start = file.read(8)
    start += file.read(int.from_bytes(start, "little"))  # with the header
    place = start.find(written.encode())
    without = start.replace(written.encode(), _NO_DIGEST.encode())
    total = hashlib.sha256(without)
    hashlib.file_digest(file, lambda: total)  # updates it with the rest of the file
    return total.hexdigest(), place


def save_untrained(path: Path, identity: dict[str, Any]) -> None:
    """Write the weights of iteration 0 of the run with this identity."""
    config = ConfigSlice(identity)
    model = architecture(config.model.architecture).initialise(config.model, config.seed)
    save(path, model.state_dict(), Header("weights", 0, 0, identity, {}))


def digest(path: Path) -> str:
    """SHA-256 of a file of this project: from its header, or of its bytes if there is none."""
    return read_header(path).sha256 or sha256(path)


def read_header(path: Path) -> Header:
    """The header of a file of this project; the tensors stay on disk and are not checked."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_METADATA_KEY)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file, expected a checkpoint.") from error
    except (safetensors.SafetensorError, OSError) as error:
        raise InputError(
            f"{path}: cannot be read ({error}), expected a complete safetensors file."
        ) from error
    try:
        header = parse_json(text or "", Header)
    except ValueError as error:
        raise InputError(
            f"{path}: found no header under the metadata key '{_METADATA_KEY}'"
            f" ({first_line(error)}), expected a checkpoint of this project."
        ) from error
    # a renamed file would pass for the checkpoint of another iteration
    named = CHECKPOINT.fullmatch(path.name)
    if named and int(named[1]) != header.iteration:
        raise InputError(
            f"{path}: found a header of iteration {header.iteration}, expected {int(named[1])}."
        )
    return header


def load(
    path: Path, kind: str, identity: Mapping[str, Any], device: str = "cpu"
) -> tuple[dict[str, Tensor], Header]:
    """Tensors and header of `path`, refused if it is of another kind or identity.

    `identity` may be a part of the file's: evaluating needs the model to agree, resuming needs all.

    Raises:
        InputError: if the file cannot be read, is refused, or is not the one that was written.
    """
    header = read_header(path)
    if header.kind != kind:
        raise InputError(f"{path}: found a file of kind '{header.kind}', expected '{kind}'.")
    wanted = json.loads(canonical_json(identity))  # as it is after a round trip
    known = {key: header.identity.get(key) for key in wanted}
    for name, found, expected in differences(known, wanted):
        advice = "" if kind == "partial" else "; choose another `run` name or remove the file"
        raise InputError(
            f"{path}: belongs to another configuration: {name} is {found} there, expected"
            f" {expected}{advice}."
        )
    # a damaged file can have a header that is readable
    if header.sha256 is not None:
        with path.open("rb") as file:
            found, _ = _digest(file, header.sha256)
        if found != header.sha256:
            raise InputError(
                f"{path}: found a file with the SHA-256 {found[:12]}…, expected"
                f" {header.sha256[:12]}… as when it was written; the file is damaged; remove it and"
                f" run `snakemake {path}`."
            )
    try:
        with safetensors.safe_open(path, framework="pt", device=device) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        return tensors, header
    except safetensors.SafetensorError as error:
        raise InputError(
            f"{path}: cannot be read ({first_line(error)}), expected tensors of floats."
        ) from error


def load_weights(
    path: Path, identity: Mapping[str, Any], config: ModelConfig, device: str
) -> tuple[dict[str, Tensor], Header]:
    """`load` for finite weights of a model of this config; others are refused."""
    tensors, header = load(path, "weights", identity, device)
    check_tensors(path, tensors, blank(config).state_dict())
    return tensors, header


def blank(config: ModelConfig) -> LoopedModel:
    """A model of this config without values: its parameters have names, shapes and dtypes."""
    with torch.device("meta"):
        return build(config)


def differences(found: Any, expected: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Dotted name and both values of the leaves in which two nested mappings differ."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted(found.keys() | expected.keys()):
            dotted = f"{name}.{key}" if name else key
            yield from differences(found.get(key), expected.get(key), dotted)
    elif found != expected:
        yield name, found, expected


# --- models to measure


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A model to measure, with everything on which its measurements depend."""

    model: LoopedModel
    iteration: int
    seed: int
    drawn: DrawnNoise = field(default_factory=DrawnNoise, compare=False, repr=False)

    @property
    def device(self) -> torch.device:
        return any_weight(self.model).device

    def noise(self, sequences: Sequence[int]) -> EvaluationNoise:
        return EvaluationNoise.of(self.model.config, self.seed, sequences, self.drawn)


def open_checkpoint(path: Path, config: ConfigSlice, dtype: str) -> LoadedCheckpoint:
    """The model of a checkpoint for evaluation, in `dtype`, on the device of the config.

    `config` has the section `model`, `device` and `seed`. For a published model `path` is a file of
    its folder, and its iteration is 0. Raises InputError for another model's checkpoint.
    """
    options = (config.model, getattr(torch, dtype), config.device)
    if config.model.source in IMPORTERS:
        importer = import_module(IMPORTERS[config.model.source])
        return LoadedCheckpoint(importer.open_published(path.parent, *options), 0, config.seed)
    model, header = load_model(path, *options)
    return LoadedCheckpoint(model, header.iteration, config.seed)


def load_model(
    path: Path, config: ModelConfig, dtype: torch.dtype, device: str
) -> tuple[LoopedModel, Header]:
    tensors, header = load_weights(path, {"model": plain(config)}, config, device)
    model = build(config)
    # in the dtype of the file, which `load_weights` has checked; `to` converts
    model.load_state_dict(tensors)
    return model.to(device=device, dtype=dtype).eval().requires_grad_(False), header


@dataclass(frozen=True)
class CheckpointJob(TableJob):
    """A job on a checkpoint. `threads`: those that it may use; torch has one unless the function
    sets more.
    """

    threads: int = 1

    def checkpoint(self, dtype: str) -> LoadedCheckpoint:
        return open_checkpoint(self.file("checkpoint"), self.config, dtype)

    def held_out(self, sequences: int) -> HeldOut:
        return open_held_out(self.file("val"), self.file("metadata"), self.config.model, sequences)
