"""The section `model` of a config without pydantic: `twoscale.config` of a released model.

The names are those that modules of the library import from `twoscale.config`.
"""

from collections.abc import Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from twoscale.base import InputError
from twoscale.config.definitions import ModelSizes

RotaryScaling = SimpleNamespace


SIZES = ("num_layers", "num_heads", "hidden_size", "context_length", "vocab_size", "vocab_multiple")


class ModelConfig(ModelSizes):
    """The keys of `model` as attributes. Only what decides how the model is built is checked.

    Args:
        values: Every key of the section, as in JSON.

    Raises:
        InputError: for sizes and groups that no model has. A missing key raises it when it is read.
    """

    rotary_scaling: Any  # a mapping in `values`, then RotaryScaling; or None

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)
        for name in SIZES:
            size = getattr(self, name)
            _require(type(size) is int and size > 0, name, size, "a whole number, at least 1")
        _require(self.hidden_size % self.num_heads == 0, "num_heads", self.num_heads, "a divisor of model.hidden_size")
        self.groups = _groups(self.groups, self.num_layers)
        scaling = self.rotary_scaling
        _require(scaling is None or isinstance(scaling, Mapping), "rotary_scaling", scaling, "null or its four keys")
        self.rotary_scaling = None if scaling is None else RotaryScaling(**scaling)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of Python, as for a copy
            raise AttributeError(name)
        raise InputError(f"config.json: key model.{name} is missing.")


def _groups(groups: Any, num_layers: int) -> tuple[tuple[int, ...], ...]:
    """The looped groups, which must be lists of successive layers in order."""
    lists = isinstance(groups, list | tuple) and all(isinstance(group, list | tuple) and group for group in groups)
    numbers = [number for group in groups for number in group] if lists else []
    whole = lists and all(type(number) is int for number in numbers)
    ordered = whole and all(low < high for low, high in pairwise([0, *numbers, num_layers + 1]))
    fits = ordered and all(group[-1] - group[0] == len(group) - 1 for group in groups)
    _require(fits, "groups", groups, f"lists of successive layers from 1 to {num_layers}")
    return tuple(map(tuple, groups))


def _require(fits: bool, name: str, found: Any, expected: str) -> None:
    if not fits:
        raise InputError(f"config.json: key model.{name}: found {str(found)[:100]}, expected {expected}.")
