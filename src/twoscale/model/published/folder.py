"""A folder in the layout of the hub: config.json, and safetensors files that an index may list.

Nothing here needs torch.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from twoscale.base import InputError, first_line
from twoscale.config import ModelConfig, merge
from twoscale.config.types import build, parse_json
from twoscale.model.published.families import FAMILIES, Description, Family, Options, Shapes

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "final.pt")
# Keys of config.json that name the family.
_KIND_KEYS = ("model_type", "model_class_name", "_class_name", "depth_scale_mode")
# Thresholds around the published one, so that a curve shows where a gate starts to cost quality.
_GATE_GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
# Keys that a run may set otherwise: they change how the model is started, not what it is.
_FREE_KEYS = ("mean_loops", "state_init", "state_std")
# Key that may be null -> property with its value.
_RESOLVED = {
    "num_kv_heads": "kv_heads",
    "mlp_size": "mlp_width",
    "embedding_scale": "embedding_factor",
    "rotary_channels": "rotated_channels",
}
# What reading a file of other bytes raises.
_UNREADABLE = (OSError, OverflowError, MemoryError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True)
class Index:
    """Name of each tensor -> its file, in the folder of the index."""

    weight_map: dict[str, Annotated[str, Field(pattern=r"^[\w.-]+\.safetensors$")]]


@dataclass(frozen=True)
class PublishedFolder:
    """A published model on disk. Errors are InputErrors that name the file."""

    path: Path

    @cached_property
    def weight_files(self) -> list[Path]:
        path = self.path / INDEX
        if not path.is_file():
            return [self.path / WEIGHTS]
        try:
            files = parse_json(path.read_bytes(), Index).weight_map.values()
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path}: cannot be read ({first_line(error)}), expected a weight_map from"
                " tensors to files."
            ) from error
        return [self.path / file for file in sorted(set(files))]

    @cached_property
    def shapes(self) -> Shapes:
        """Name of each tensor -> its shape."""
        shapes: dict[str, tuple[int, ...]] = {}
        for file in self.weight_files:
            shapes |= tensor_shapes(file)
        return shapes

    @cached_property
    def options(self) -> Options:
        """config.json."""
        return Options(self.path / CONFIG)

    @property
    def family(self) -> Family:
        found = [key for key in _KIND_KEYS if self.options.get(key) is not None]
        key = found[0] if found else _KIND_KEYS[0]
        return FAMILIES[self.options.choice(key, "", FAMILIES)]

    @cached_property
    def description(self) -> Description:
        """The model, and the loops, exit criteria and context with which it was published."""
        return self.family.describe(self.options, self.shapes)

    @property
    def layer(self) -> dict[str, dict[str, Any]]:
        """config.json as a layer of the config: sections `model` and `tokenizer`."""
        found = self.description
        return {
            "model": found.model,
            "tokenizer": {"name": "published", "vocab_size": found.vocab_size},
        }

    @property
    def readout(self) -> str:
        """`exits.readout` as published: through the layers after the last loop, if any."""
        model = self.description.model
        return "remaining_layers" if model["groups"][-1][-1] < model["num_layers"] else "head"

    def model_config(self, **changes: Any) -> ModelConfig:
        """The section `model` of this folder, with some keys replaced."""
        found = self.description
        values = {
            "source": "published",
            "folder": str(self.path),
            "vocab_size": found.vocab_size,
            "context_length": found.max_context_length,
            **found.model,
            **changes,
        }
        return build(ModelConfig, values, "model")

    def check(self, config: ModelConfig) -> None:
        """Refuse a section `model` that describes another model than this folder."""
        published = self.model_config()
        for key in ("vocab_size", *self.description.model):
            name = _RESOLVED.get(key, key)
            found, expected = getattr(config, name), getattr(published, name)
            agree = found == expected
            if isinstance(expected, float):  # up to its digits in a file
                agree = math.isclose(found, expected)
            if key not in _FREE_KEYS and not agree:
                name = "tokenizer.vocab_size" if key == "vocab_size" else f"model.{key}"
                raise InputError(
                    f"config key {name}: found {found}, expected {expected} as in"
                    f" {self.path / CONFIG}."
                )
        if config.context_length > published.context_length:
            raise InputError(
                f"config key model.context_length: found {config.context_length}, expected at most "
                f"{published.context_length}, the number of positions in {self.path / CONFIG}."
            )


def tensor_shapes(file: Path) -> Shapes:
    """Name and shape of the tensors of a safetensors file, from its header.

    Planning needs no package for weights.
    """
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")  # of the header
            tensors = json.loads(opened.read(size))
        tensors.pop("__metadata__", None)
        # offsets begin after the header
        end = max(tensor["data_offsets"][1] for tensor in tensors.values())
        if file.stat().st_size != 8 + size + end:  # length of the header, header, tensors
            raise ValueError("the file is cut or has further bytes")
        return {name: tuple(tensor["shape"]) for name, tensor in tensors.items()}
    except _UNREADABLE as error:
        pickled = [name for name in _PICKLED if (file.parent / name).is_file()]
        hint = ""
        if pickled and not file.is_file():
            hint = f"; {pickled[0]} is not read because pickled files can run code"
        raise InputError(
            f"{file}: cannot be read ({first_line(error)}), expected a complete safetensors"
            f" file{hint}."
        ) from error


def folder_layer(folder: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The config layer of the model in `folder`: loops, exit criteria and thresholds.

    It comes between a preset and the user's keys, and keeps what `values`, all keys, allow of
    context, timed tokens, loop grid and path window.
    """
    source = PublishedFolder(Path(folder))
    found, window = source.description, values["path_types"]
    loops = max(2, found.loops)  # one loop step cannot be compared with another
    # the grid of loop counts up to twice the published one, and that one
    scaling = {count for count in values["scaling"]["loops"] if count <= 2 * loops}
    context = min(values["model"]["context_length"], found.max_context_length)
    criteria = {"fixed": sorted({1, found.loops, loops}), **found.criteria}
    if "exit_gate" in criteria:
        criteria["exit_gate"] = sorted({*_GATE_GRID, *criteria["exit_gate"]})
    sections = {
        "model": {"context_length": context},
        "trajectories": {"loops": loops},
        "path_types": {name: min(window[name], loops) for name in ("window", "max_period")},
        "exits": {
            "max_loops": loops,
            "readout": source.readout,
            "latency_tokens": min(values["exits"]["latency_tokens"], context),
            "criteria": {
                name: {"thresholds": list(thresholds)} for name, thresholds in criteria.items()
            },
        },
        "scaling": {"loops": sorted(scaling | {found.loops})},
    }
    return merge(source.layer, sections)
