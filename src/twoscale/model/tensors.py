"""Checks of the tensors of a file against a model's."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from twoscale.base import InputError

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def check_tensors(path: Path, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse tensors of other names, shapes or dtypes than the expected ones, and values that are not finite.

    The values of `expected` are not read, so it may be on the device "meta".
    """
    for problem, names in (("no", expected.keys() - found.keys()), ("the unknown", found.keys() - expected.keys())):
        if names:
            others = f" and {len(names) - 1} others" if len(names) > 1 else ""
            raise InputError(f"{path}: found {problem} tensor {min(names)}{others}, expected those of the model.")
    for name, tensor in found.items():
        for what in ("shape", "dtype"):
            value, wanted = (getattr(of, what) for of in (tensor, expected[name]))
            if value != wanted:
                value, wanted = (tuple(shape) for shape in (value, wanted)) if what == "shape" else (value, wanted)
                raise InputError(f"{path}: tensor {name}: found the {what} {value}, expected {wanted}.")
        check_finite(path, name, tensor)


def check_finite(path: Path, name: str, tensor: Tensor) -> None:
    """Refuse a tensor of floats with NaN or an infinite value, in one pass that allocates nothing."""
    if tensor.numel() and not torch.stack(tensor.aminmax()).isfinite().all():  # NaN is both minimum and maximum
        raise InputError(f"{path}: tensor {name}: found NaN or an infinite value, expected finite numbers.")
