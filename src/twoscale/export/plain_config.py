"""The section `model` of a config without pydantic: `twoscale.config` of an exported model."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from twoscale.base import InputError
from twoscale.config.definitions import ModelSizes

RotaryScaling = SimpleNamespace


class ModelConfig(ModelSizes):
    """The keys of `model` as attributes, from every key of the section as in JSON."""

    rotary_scaling: Any  # a mapping in `values`, then RotaryScaling; or None

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)
        self.groups = tuple(map(tuple, self.groups))
        self.rotary_scaling = self.rotary_scaling and RotaryScaling(**self.rotary_scaling)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of Python, as for a copy
            raise AttributeError(name)
        raise InputError(f"config.json: key model.{name} is missing.")
