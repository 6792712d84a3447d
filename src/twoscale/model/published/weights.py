"""Published weights as a model: read tensor by tensor from the mapped files, with no second copy in memory."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors
import torch
from torch import Tensor

from twoscale.base import InputError
from twoscale.config import ModelConfig
from twoscale.model import flops, registry
from twoscale.model.checkpoints import FLOATS, check_finite
from twoscale.model.interface import LoopedModel
from twoscale.model.layers import RotaryEmbedding
from twoscale.model.published.family import HEAD, NameMap, Shape
from twoscale.model.published.folder import CONFIG, PublishedFolder

MEMORY = Path("/proc/meminfo")
MOST_ROUNDING = 2.0**-8  # of a stored cosine: half a step of bfloat16 next to 1, and as much for angles in float32


def open_published(folder: Path, config: ModelConfig, dtype: torch.dtype, device: str) -> LoopedModel:
    """The model in `folder` for evaluation, in `dtype` on `device`.

    Each published tensor is used exactly once or is one that the family does not need.

    Raises:
        InputError: if the folder has another model than `config`, a tensor is missing, unknown or of another shape,
            or memory is too small.
    """
    source = PublishedFolder(folder)
    source.check(config)
    names, tensors, shapes = source.family.tensors(config, source.tensors), source.tensors, source.shapes
    _check_names(source, config, names)
    _check_memory(folder, config, dtype, device)
    with torch.device("meta"):
        model = registry.build(config).to(dtype)
    for ours, parameter in model.named_parameters():
        parts = names[ours]
        if not _fill([shapes[part] for part in parts], tuple(parameter.shape)):
            found = " and ".join(str(shapes[part]) for part in parts)
            raise InputError(
                f"{tensors[parts[0]]}: tensor {' and '.join(parts)}: found the shape {found}, expected "
                f"{tuple(parameter.shape)}."
            )
    _check_rotation(source, config)
    model = model.to_empty(device=device).eval().requires_grad_(False)
    targets = dict(_targets(model, names, shapes))
    for file in source.weight_files:  # in the order of the files
        with safetensors.safe_open(file, framework="pt") as opened:
            for name in targets.keys() & set(opened.keys()):
                tensor = opened.get_tensor(name)
                if tensor.dtype not in FLOATS:
                    raise InputError(f"{file}: tensor {name}: found the dtype {tensor.dtype}, expected a float.")
                check_finite(file, name, tensor)
                targets[name].copy_(tensor.reshape(targets[name].shape))
    return model


def _check_names(source: PublishedFolder, config: ModelConfig, names: NameMap) -> None:
    """Refuse missing and unknown tensors, before any is read."""
    tensors = source.tensors.keys()
    wanted = {part for parts in names.values() for part in parts}
    tied = {HEAD} if config.tied_head else set()
    unknown = {name for name in tensors - wanted - tied if not re.fullmatch(source.family.droppable, name)}
    for problem, found in (("no", wanted - tensors), ("the unknown", unknown)):
        if found:
            others = f" and {len(found) - 1} others" if len(found) > 1 else ""
            raise InputError(
                f"{source.path}: found {problem} tensor {min(found)}{others}, expected the tensors of {CONFIG} in the "
                f"names of {source.family.name}."
            )


def _fill(shapes: list[Shape], expected: Shape) -> bool:
    """Whether tensors of these shapes are the rows of a parameter; a single one may have more axes."""
    if len(shapes) == 1:
        return shapes[0] == expected or (len(shapes[0]) > 2 and math.prod(shapes[0]) == math.prod(expected))
    return all(shape[1:] == expected[1:] for shape in shapes) and sum(shape[0] for shape in shapes) == expected[0]


def _targets(model: LoopedModel, names: NameMap, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, Tensor]]:
    """Name of a published tensor -> the rows of our parameter that it is."""
    for ours, parameter in model.named_parameters():
        rows = [shapes[part][0] for part in names[ours]] if len(names[ours]) > 1 else [len(parameter)]
        yield from zip(names[ours], parameter.data.split(rows), strict=True)


def _check_rotation(source: PublishedFolder, config: ModelConfig) -> None:
    """Refuse a file whose table of rotations, which the published code reads, has others than config.json says.

    A table that was rounded to bfloat16 with the weights is accepted, and the rotations are computed as for any model.
    """
    name = source.family.rotation
    if name is None or name not in source.tensors:
        return
    file = source.tensors[name]
    with safetensors.safe_open(file, framework="pt") as tensors:
        stored = tensors.get_tensor(name).double()
    rotary = RotaryEmbedding(config).double()
    computed = torch.stack((rotary.cos[:, 0], rotary.sin[:, 0]), dim=-1)  # (T, R/2, 2)
    shape = (1, stored.shape[1] if stored.dim() == 5 else 0, 1, *computed.shape[1:])
    if stored.shape != shape:
        raise InputError(f"{file}: tensor {name}: found the shape {tuple(stored.shape)}, expected {shape}.")
    stored = stored[0, : len(computed), 0]
    difference = (stored - computed[: len(stored)]).abs().max().item()
    if not difference <= MOST_ROUNDING:
        raise InputError(
            f"{file}: tensor {name}: found rotations that differ by {difference:.2g} from {CONFIG} with base "
            f"{config.rotary_base:g}, expected at most {MOST_ROUNDING:g}, the rounding of bfloat16."
        )


def _check_memory(folder: Path, config: ModelConfig, dtype: torch.dtype, device: str) -> None:
    """Refuse a model that is larger than the free memory, where the system tells it."""
    needed = flops.parameters(config) * dtype.itemsize
    if torch.device(device).type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    elif MEMORY.is_file():
        free = 1024 * int(re.findall(r"MemAvailable:\s*(\d+)", MEMORY.read_text())[0])
    else:
        return
    if needed > free:
        raise InputError(
            f"{folder}: found {free / 1e9:.1f} GB of free memory on {device}, expected at least {needed / 1e9:.1f} GB "
            f"for {flops.parameters(config) / 1e9:.2f} billion weights in {str(dtype).removeprefix('torch.')}."
        )
