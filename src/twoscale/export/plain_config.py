"""The section `model` of a config without pydantic: `twoscale.config` of a released model.

The names are those that modules of the library import from `twoscale.config`.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from twoscale.config.definitions import ModelSizes

RotaryScaling = SimpleNamespace


class ModelConfig(ModelSizes):
    """The keys of `model` as attributes. They are not checked again: they were before the model was trained.

    Args:
        values: Every key of the section, as in JSON.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)
        self.groups = tuple(map(tuple, values["groups"]))
        scaling = values["rotary_scaling"]
        self.rotary_scaling = None if scaling is None else RotaryScaling(**scaling)
