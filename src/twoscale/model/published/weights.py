"""Published weights as a model, read tensor by tensor without a second copy in memory."""

import math
import re
from pathlib import Path

import safetensors
import torch
from torch import Tensor

from twoscale.base import InputError
from twoscale.config import ModelConfig
from twoscale.model import flops
from twoscale.model.checkpoints import FLOATS, blank, check_finite, check_names
from twoscale.model.interface import LoopedModel
from twoscale.model.published.families import HEAD
from twoscale.model.published.folder import CONFIG, PublishedFolder

_MEMORY = Path("/proc/meminfo")


def open_published(
    folder: Path, config: ModelConfig, dtype: torch.dtype, device: str
) -> LoopedModel:
    """The model in `folder` for evaluation, in `dtype` on `device`.

    Each published tensor is used exactly once or is one that the family does not need.

    Raises:
        InputError: if the folder has another model than `config`, a tensor is missing, unknown or
            of another shape, or memory is too small.
    """
    source = PublishedFolder(folder)
    source.check(config)
    # before memory is taken
    _check_memory(folder, config, dtype, device)
    model = blank(config).to(dtype)  # without values, to compare names and shapes
    names = source.family.names(config, source.shapes)
    theirs = {ours: names.of(config, ours) for ours, _ in model.named_parameters()}
    _check_tensors(source, model, theirs)
    # from here on every parameter is filled in place
    model = model.to_empty(device=device).eval().requires_grad_(False)
    targets: dict[str, Tensor] = {}  # published tensor -> the rows of our parameter that it is
    for ours, parameter in model.named_parameters():
        parts = theirs[ours]
        if not parts:  # a norm that has no weights there
            parameter.data.fill_(1.0)
        elif len(parts) == 1:
            targets[parts[0]] = parameter.data
        else:
            # the parts are views of the parameter, so filling them fills it
            rows = [source.shapes[part][0] for part in parts]
            targets |= dict(zip(parts, parameter.data.split(rows), strict=True))
    for file in source.weight_files:  # in the order of the files
        with safetensors.safe_open(file, framework="pt") as opened:
            for name in targets.keys() & set(opened.keys()):
                tensor = opened.get_tensor(name)
                if tensor.dtype not in FLOATS:
                    raise InputError(
                        f"{file}: tensor {name}: found the dtype {tensor.dtype}, expected a float."
                    )
                check_finite(file, name, tensor)
                # `copy_` converts to our dtype; published tensors may have further axes, see `_fit`
                targets[name].copy_(tensor.reshape(targets[name].shape))
                source.family.adapt(source.options, name, targets[name])
    return model


def _check_tensors(
    source: PublishedFolder, model: LoopedModel, theirs: dict[str, list[str]]
) -> None:
    """Refuse missing and unknown tensors and other shapes, before any is read."""
    shapes = source.shapes
    wanted = {part for parts in theirs.values() for part in parts}
    unknown = set()
    for name in shapes.keys() - wanted:
        # a folder may have a copy of a tied head
        is_tied_head = name == HEAD and model.config.tied_head
        if not is_tied_head and not re.fullmatch(source.family.droppable, name):
            unknown.add(name)
    expected_names = f"the tensors of {CONFIG} in the names of {source.family.name}"
    check_names(source.path, wanted - shapes.keys(), unknown, expected_names)
    for ours, parameter in model.named_parameters():
        parts, expected = theirs[ours], tuple(parameter.shape)
        found = [shapes[part] for part in parts]
        if not _fit(found, expected):
            names, sizes = " and ".join(parts), " and ".join(map(str, found))
            raise InputError(
                f"{source.path}: tensor {names}: found the shape {sizes}, expected {expected}."
            )


def _fit(found: list[tuple[int, ...]], expected: tuple[int, ...]) -> bool:
    """Whether tensors of these shapes are the rows of a parameter; no tensor stands for ones."""
    if len(found) > 1:
        rows = sum(shape[0] for shape in found)
        return rows == expected[0] and {shape[1:] for shape in found} == {expected[1:]}
    # a single tensor may have more axes
    return all(
        shape == expected or (len(shape) > 2 and math.prod(shape) == math.prod(expected))
        for shape in found
    )


def _check_memory(folder: Path, config: ModelConfig, dtype: torch.dtype, device: str) -> None:
    """Refuse a model that is larger than the free memory, where the system tells it."""
    count = flops.parameters(config)
    needed = count * dtype.itemsize
    if torch.device(device).type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    elif _MEMORY.is_file():
        free = 1024 * int(re.findall(r"MemAvailable:\s*(\d+)", _MEMORY.read_text())[0])  # of kB
    else:
        return
    if needed > free:
        raise InputError(
            f"{folder}: found {free / 1e9:.1f} GB of free memory on {device}, expected at least"
            f" {needed / 1e9:.1f} GB for {count / 1e9:.2f} billion weights in"
            f" {str(dtype).removeprefix('torch.')}."
        )
