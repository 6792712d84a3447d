"""Families of published models: how their config.json and tensors map to ours."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twoscale.base import InputError, first_line
from twoscale.config import ModelConfig
from twoscale.config.types import LONGEST_VALUE, parse_json

Shape = tuple[int, ...]
HEAD = "lm_head.weight"

# Our parameter -> the names of the published tensors that are its rows, in this order.
NameMap = dict[str, list[str]]


@dataclass(frozen=True)
class Defaults:
    """Published defaults of running a model.

    loops: loop steps. criteria: exit criterion -> thresholds. max_context_length: positions that it knows.
    """

    loops: int
    criteria: Mapping[str, Sequence[float]]
    max_context_length: int


@dataclass(frozen=True)
class Family:
    """Published models with one config.json format and one naming of tensors.

    Attributes:
        name: Its name in messages.
        layer: (config.json, tensors with their shapes) -> keys of the section `model` and "vocab_size".
        tensors: (our model, names of the tensors) -> the published tensors of each of its parameters.
        droppable: Pattern of the names of tensors that may be there and are not needed; a head that is tied, too.
        defaults: (config.json, names of the tensors) -> how the model was published to be run.
        rotation: Name of the tensor with the cosine and sine of each position and pair, (1, T, 1, R/2, 2), which the
            published code reads from the file.
    """

    name: str
    layer: Callable[["Options", Mapping[str, Shape]], dict[str, Any]]
    tensors: Callable[[ModelConfig, Collection[str]], NameMap]
    droppable: str
    defaults: Callable[["Options", Collection[str]], Defaults]
    rotation: str | None = None


class Options:
    """The keys of a config.json. Errors name the file and the key. Keys that nobody asks for are ignored."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path, self.values = path, values

    @classmethod
    def read(cls, path: Path) -> "Options":
        try:
            return cls(path, parse_json(path.read_bytes(), dict[str, Any]))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path}: cannot be read ({first_line(error)}), expected the config.json of a published model."
            ) from error

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key; its default where it is absent or null."""
        value = self.values.get(key)
        return default if value is None else value

    def count(self, *keys: str, default: int | None = None) -> int:
        """The whole number of at least 1 under the first of the keys that is there."""
        key = next((key for key in keys if self.get(key) is not None), keys[0])
        value = self.get(key, default)
        if type(value) is not int or value < 1:
            raise self.error(key, "a whole number of at least 1")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.get(key, default)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise self.error(key, "a number above 0")
        return float(value)

    def choice(self, key: str, default: str, known: Collection[str]) -> str:
        """One of several known values."""
        value = self.get(key, default)
        if not isinstance(value, str) or value not in known:
            raise self.error(key, f"one of {', '.join(known)}; other values are not supported")
        return value

    def require(self, **supported: Any) -> None:
        """Refuse an option with another value than the supported one; an option that is absent or null is fine."""
        for key, value in supported.items():
            if self.get(key, value) != value:
                raise self.error(key, f"{json.dumps(value)}; other values are not supported")

    def agree(self, value: Any, *keys: str) -> Any:
        """`value`, as the tensors have it; the key must agree where it is given."""
        for key in keys:
            if self.get(key, value) != value:
                raise self.error(key, f"{json.dumps(value)}, as in the tensors")
        return value

    def within(self, key: str) -> "Options":
        """The mapping under a key, empty where it is absent."""
        values = self.get(key, {})
        if not isinstance(values, dict):
            raise self.error(key, "a mapping")
        return Options(self.path, values)

    def error(self, key: str, expected: str) -> InputError:
        found = json.dumps(self.values[key])[:LONGEST_VALUE] if key in self.values else "nothing"
        return InputError(f"{self.path}: found {key} = {found}, expected {expected}.")


def check_head_size(options: Options, size: int, heads: int) -> None:
    """Refuse heads of another size than the hidden size divided by their number."""
    if size % heads:
        raise InputError(
            f"{options.path}: found {heads} attention heads, expected a divisor of the hidden size {size}."
        )
    options.require(head_dim=size // heads)


def rotation(options: Options, default_base: float | None) -> dict[str, Any]:
    """`model.rotary_base` and `model.rotary_scaling`, as in Llama 3.1 or None.

    They are under rope_theta and rope_scaling, or from version 5 of transformers on together under rope_parameters.
    """
    together = options.within("rope_parameters")
    base, key = (together, "rope_parameters") if together.values else (options, "rope_scaling")
    if together.values:
        options.require(rope_theta=together.get("rope_theta", options.get("rope_theta")))
    scaling = options.within(key)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", "llama3") or any(isinstance(value, dict) for value in scaling.values.values()):
        raise options.error(key, "null or one rotation of the type llama3 for all layers")
    found = None
    if kind == "llama3":
        found = {
            "factor": scaling.positive("factor"),
            "low_frequency_factor": scaling.positive("low_freq_factor"),
            "high_frequency_factor": scaling.positive("high_freq_factor"),
            "original_context_length": scaling.count("original_max_position_embeddings"),
        }
    base = base if base.get("rope_theta") is not None else options
    return {"rotary_base": base.positive("rope_theta", default_base), "rotary_scaling": found}


def core_layer(model: ModelConfig, number: int) -> str:
    """Name of layer `number` in the code that Huginn and Parcae share: layers are counted from 0 in each part."""
    (core,) = model.groups
    if number in core:
        return f"core_block.{number - core[0]}"
    return f"prelude.{number - 1}" if number < core[0] else f"coda.{number - core[-1] - 1}"


def name_map(
    model: ModelConfig, outside: Mapping[str, str], theirs: Callable[[int], str], inside: Mapping[str, Sequence[str]]
) -> NameMap:
    """The `NameMap` of a model from its parameters outside of layers (without the head) and inside of them.

    `theirs` maps the number of a layer to the beginning of the names of its published tensors; `inside` has both sides
    without the beginnings of their names.
    """
    found = {ours: [name] for ours, name in outside.items()}
    if not model.tied_head:
        found["head.weight"] = [HEAD]
    layers = {number: f"unlooped.{number}" for number in range(1, model.num_layers + 1)}
    for group, numbers in enumerate(model.groups):
        layers |= {number: f"groups.{group}.layers.{i}" for i, number in enumerate(numbers)}
    for number, ours in layers.items():
        found |= {f"{ours}.{name}": [f"{theirs(number)}.{part}" for part in parts] for name, parts in inside.items()}
    return found
