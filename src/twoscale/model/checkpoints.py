"""Weights and optimizer states as safetensors that carry their own identity.

One metadata key holds canonical JSON: what the tensors are, the step, the tokens seen and the identity of
the run (seed, model, training settings, digest of the text). One key because safetensors writes several in
random order; no time and no host, so equal states are equal files. Nothing is unpickled.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from twoscale import config
from twoscale.errors import InputError
from twoscale.files import replacing
from twoscale.model.transformer import LoopedTransformer

METADATA_KEY = "twoscale"


@dataclass(frozen=True)
class Header:
    """What a file says of itself.

    kind: "weights", "optimizer" or "partial". step: finished iterations. identity: everything that the
    tensors depend on besides the step.
    """

    kind: str
    step: int
    tokens_seen: int
    identity: dict[str, Any]
    extra: dict[str, Any]


def save(path: Path, tensors: Mapping[str, Tensor], header: Header) -> None:
    """Write `tensors` and their header to `path` in one step."""
    text = canonical_json(vars(header))
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        save_file(contiguous, temporary, metadata={METADATA_KEY: text})


def read_header(path: Path) -> Header:
    """The header of a file of this project; the tensors stay on disk."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(METADATA_KEY)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file, expected a checkpoint.") from error
    except (safetensors.SafetensorError, OSError) as error:
        raise InputError(f"{path}: cannot be read ({error}), expected a whole safetensors file.") from error
    try:
        return Header(**json.loads(text or ""))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{path}: found no header under the metadata key '{METADATA_KEY}', expected a checkpoint of this project."
        ) from error


def load(path: Path, kind: str, identity: Mapping[str, Any], device: str = "cpu") -> tuple[dict[str, Tensor], Header]:
    """Tensors and header of `path`, refused if it is of another kind or does not belong to `identity`.

    `identity` may be a part of the file's: evaluating needs the model to agree, resuming needs all.
    """
    header = read_header(path)
    if header.kind != kind:
        raise InputError(f"{path}: found a file of kind '{header.kind}', expected '{kind}'.")
    wanted = json.loads(canonical_json(identity))
    difference = first_difference({key: header.identity.get(key) for key in wanted}, wanted)
    if difference is not None:
        name, found, expected = difference
        raise InputError(
            f"{path}: belongs to another configuration: {name} is {found} there, expected {expected}; "
            "choose another `run` name or remove the file."
        )
    with safetensors.safe_open(path, framework="pt", device=device) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118 - not a mapping


def first_difference(found: Any, expected: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """Dotted name and both values of the first leaf in which two nested mappings differ."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted(found.keys() | expected.keys()):
            inner = f"{name}.{key}" if name else key
            difference = first_difference(found.get(key), expected.get(key), inner)
            if difference:
                return difference
        return None
    return None if found == expected else (name, found, expected)


def load_model(path: Path, model: config.ModelConfig, dtype: torch.dtype, device: str) -> tuple[LoopedTransformer, Header]:
    """The model of a checkpoint for evaluation, in `dtype` on `device`."""
    tensors, header = load(path, "weights", {"model": vars(model)}, device)
    made = LoopedTransformer(model)
    made.load_state_dict(tensors)
    return made.to(device=device, dtype=dtype).eval().requires_grad_(False), header
