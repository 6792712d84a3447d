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
from twoscale.model.published.family import HEAD, NameMap
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
    names = source.family.tensors(config, source.tensors)
    _check_names(source, config, names)
    _check_memory(folder, config, dtype, device)
    with torch.device("meta"):
        model = registry.build(config).to(dtype)
    _check_shapes(source, model, names)
    _check_rotation(source, config)
    model = model.to_empty(device=device).eval().requires_grad_(False)
    _fill(model, source, names)
    return model


def _check_names(source: PublishedFolder, config: ModelConfig, names: NameMap) -> None:
    """Refuse missing and unknown tensors, before any is read."""
    wanted = {part for parts in names.values() for part in parts}
    if missing := sorted(wanted - source.tensors.keys()):
        raise InputError(f"{source.path}: found no tensor {_listed(missing)}, expected the tensors of {CONFIG}.")
    tied = {HEAD} if config.tied_head else set()
    rest = source.tensors.keys() - wanted - tied
    if unknown := sorted(name for name in rest if not re.fullmatch(source.family.droppable, name)):
        raise InputError(
            f"{source.path}: found the unknown tensor {_listed(unknown)}, expected only tensors of the family "
            f"{source.family.name}."
        )


def _check_shapes(source: PublishedFolder, model: LoopedModel, names: NameMap) -> None:
    """Refuse tensors that do not fill the rows of our parameters; a single one may have more axes."""
    for ours, parameter in model.named_parameters():
        shapes = [source.shapes[part] for part in names[ours]]
        rows = sum(shape[0] for shape in shapes if shape)
        joined = shapes[0] if len(shapes) == 1 else (rows, *shapes[0][1:])
        is_same = joined == tuple(parameter.shape) or (len(joined) > 2 and math.prod(joined) == parameter.numel())
        if not is_same or len({shape[1:] for shape in shapes}) > 1:
            file, found = source.tensors[names[ours][0]], " and ".join(map(str, shapes))
            raise InputError(
                f"{file}: tensor {' and '.join(names[ours])}: found the shape {found}, expected "
                f"{tuple(parameter.shape)}."
            )


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
    computed = rotation_table(config)  # (T, R/2, 2)
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


def rotation_table(config: ModelConfig) -> Tensor:
    """Cosine and sine of each position and pair, float64 (T, R/2, 2)."""
    rotary = RotaryEmbedding(config).double()
    return torch.stack((rotary.cos[:, 0], rotary.sin[:, 0]), dim=-1)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} others"


def _check_memory(folder: Path, config: ModelConfig, dtype: torch.dtype, device: str) -> None:
    needed, free = flops.parameters(config) * dtype.itemsize, free_memory(device)
    if free is not None and needed > free:
        raise InputError(
            f"{folder}: found {free / 1e9:.1f} GB of free memory on {device}, expected at least {needed / 1e9:.1f} GB "
            f"for {flops.parameters(config) / 1e9:.2f} billion weights in {str(dtype).removeprefix('torch.')}."
        )


def free_memory(device: str) -> int | None:
    """Bytes that can be allocated on a device; None where the system does not say."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if not MEMORY.is_file():
        return None
    lines = dict(line.split(":") for line in MEMORY.read_text().splitlines())
    return 1024 * int(lines["MemAvailable"].split()[0])


def _fill(model: LoopedModel, source: PublishedFolder, names: NameMap) -> None:
    """Copy each published tensor to its rows of a parameter, in the order of the files."""
    targets = dict(_targets(model, names, source.shapes))
    for file in source.weight_files:
        with safetensors.safe_open(file, framework="pt") as tensors:
            for name in targets.keys() & set(tensors.keys()):
                tensor = tensors.get_tensor(name)
                if tensor.dtype not in FLOATS:
                    raise InputError(f"{file}: tensor {name}: found the dtype {tensor.dtype}, expected a float.")
                check_finite(file, name, tensor)
                targets[name].copy_(tensor.reshape(targets[name].shape))


def _targets(model: LoopedModel, names: NameMap, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, Tensor]]:
    """Name of a published tensor -> the rows of our parameter that it is."""
    for ours, parameter in model.named_parameters():
        rows = [shapes[part][0] for part in names[ours]] if len(names[ours]) > 1 else [len(parameter)]
        yield from zip(names[ours], parameter.data.split(rows), strict=True)
