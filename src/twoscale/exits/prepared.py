"""A model prepared for decoding on the CPU, where one row at a time makes host work and the weights' layout count."""

import copy

import torch
from torch import nn

from twoscale.model.interface import LoopedModel, any_weight

MAX_COPIED_BYTES = 2**30  # of linear weights; those of larger models keep their layout, because a copy takes memory


def prepared(model: LoopedModel) -> LoopedModel:
    """A model that computes what `model` does, with less work per loop step for one token on the CPU.

    It is a copy of the tree of modules with two changes. Parameters and submodules are plain attributes, which
    `nn.Module` otherwise looks up at a cost of half a microsecond each. Weights of linear layers are copied in
    column-major order, in which a product with one row is faster; other tensors are shared. The copy does not follow
    later changes of the linear weights. A model on another device, or one that is no module, is returned as it is.
    """
    if not isinstance(model, nn.Module) or any_weight(model).device.type != "cpu":
        return model
    linear = {module.weight for module in model.modules() if isinstance(module, nn.Linear)}
    copies = sum(weight.nbytes for weight in linear) <= MAX_COPIED_BYTES
    return _prepared(model, copies, {})


def _prepared(module: nn.Module, copies: bool, seen: dict[nn.Module, nn.Module]) -> nn.Module:
    if module in seen:
        return seen[module]
    new = seen[module] = copy.copy(module)
    modules = {name: child and _prepared(child, copies, seen) for name, child in module._modules.items()}
    parameters = dict(module._parameters)
    if copies and isinstance(module, nn.Linear):
        weight = module.weight.detach().t().contiguous().t()
        parameters["weight"] = nn.Parameter(weight, requires_grad=False)
    new.__dict__ |= {"_modules": modules, "_parameters": parameters, **modules, **parameters}
    return new
