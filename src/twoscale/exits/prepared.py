"""Copies of a model for decoding on the CPU, where the layout of weights and the host work of a few rows count."""

import copy
from collections.abc import Callable

import torch
from torch import nn

from twoscale.model.interface import LoopedModel, any_weight
from twoscale.model.linear import Linear, can_pack

MAX_COPIED_BYTES = 2**30  # a larger model keeps its layout, because copies take memory
DTYPES = (torch.float32, torch.float64)


def by_columns(model: LoopedModel) -> LoopedModel:
    """A model whose linear weights are stored by columns where a product with one row is then faster.

    These weights are copies and do not follow later changes; everything else is shared. A model on another device than
    the CPU, or whose copies would take more than `MAX_COPIED_BYTES`, is returned as it is.
    """
    if not isinstance(model, nn.Module) or not any_weight(model).is_cpu:
        return model
    copied = sum(module.weight.nbytes for module in model.modules() if _is_faster_by_columns(module))
    return _copied(model, _store_by_columns, {}) if copied <= MAX_COPIED_BYTES else model


def for_rows(model: LoopedModel) -> LoopedModel:
    """A model that shares all weights with `model` and computes one row (1, C) with less host work.

    Submodules and parameters are plain attributes and lists of modules are tuples, because `nn.Module` takes half a
    microsecond for each lookup. A module that has a method `forward_row` calls it in place of `forward`, and linear
    layers are prepared (`Linear.prepare`). For the CPU, float32 and float64, without gradient; another model is
    returned as it is.
    """
    return _prepared(model, "forward_row", None)


def for_batches(model: LoopedModel, rows: int | None = None) -> LoopedModel:
    """As `for_rows`, for several rows (N, C) at once: `forward_rows` in place of `forward`.

    With `rows`, the most rows, linear weights in float32 are packed for oneDNN and do not follow later changes, unless
    the packed copies would take more than `MAX_COPIED_BYTES`. The product of 16 rows then takes two thirds of its time
    (tests/benchmarks/bench_batched.py).
    """
    copied = sum(module.weight.nbytes for module in model.modules() if isinstance(module, Linear))
    packs = can_pack(any_weight(model)) and copied <= MAX_COPIED_BYTES
    return _prepared(model, "forward_rows", rows if packs else None)


def _prepared(model: LoopedModel, method: str, packed_for: int | None) -> LoopedModel:
    """A copy that calls `method` of each module that has it in place of `forward`, with prepared linear layers."""
    like = any_weight(model)
    if not isinstance(model, nn.Module) or not like.is_cpu or like.dtype not in DTYPES:
        return model

    def prepare(module: nn.Module) -> None:
        _make_plain(module)
        if hasattr(module, method):
            module.forward = getattr(module, method)
        elif isinstance(module, Linear):
            module.prepare(packed_for)

    return _copied(model, prepare, {})


def _copied(module: nn.Module, change: Callable[[nn.Module], None], copies: dict[nn.Module, nn.Module]) -> nn.Module:
    """A copy of a tree of modules that shares tensors and hooks, after `change` of each of its modules."""
    if module not in copies:
        new = copies[module] = copy.copy(module)
        children = {name: child and _copied(child, change, copies) for name, child in module._modules.items()}
        new.__dict__ |= {"_modules": children, "_parameters": dict(module._parameters)}
        change(new)
    return copies[module]


def _is_faster_by_columns(module: nn.Module) -> bool:
    # measured at hidden sizes 64 to 768: 10 to 40 % faster, but slower for the projection from 4C to C
    return isinstance(module, nn.Linear) and module.in_features <= 2 * module.out_features


def _store_by_columns(module: nn.Module) -> None:
    if _is_faster_by_columns(module):
        module.weight = nn.Parameter(module.weight.detach().t().contiguous().t(), requires_grad=False)


def _make_plain(module: nn.Module) -> None:
    lists = {name: tuple(child) for name, child in module._modules.items() if isinstance(child, nn.ModuleList)}
    module.__dict__ |= module._modules | module._parameters | lists
