"""Compilation of a model for training: the loop step of every group and every unlooped layer."""

from typing import Any

import torch

from twoscale.base import InputError
from twoscale.model.interface import LoopedModel

GRAPHS_PER_GROUP = 3  # a step before the gradient, the first one with it, and those whose state has one too
BATCH_SIZES = 2  # of the parts of a batch, which differ by one sequence where it is not divided evenly


def check_compiler(device: str) -> None:
    """Refuse to compile for the CPU where torch finds no C++ compiler."""
    if device != "cpu":
        return
    # imported here: it takes a second, and few runs compile on CPU
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise InputError(
            "config key train.compile: found no C++ compiler (the variable CXX, otherwise g++), expected one for "
            "compilation on CPU; set train.compile: false to train without it."
        ) from error


def compile_blocks(model: LoopedModel, sharded: bool = False, **options: Any) -> None:
    """Compile the loop step of every group and every unlooped layer, each once whatever the loop counts.

    `options` are for torch.compile. Beyond its limit torch would silently run the rest uncompiled. Of a model that
    will be divided only `forward` is compiled, without the hooks that gather weights and would break the graph.
    """
    limit = GRAPHS_PER_GROUP * BATCH_SIZES * max(1, len(model.config.groups))
    # for the whole process, because not every version of torch.compile has the option
    torch._dynamo.config.recompile_limit = max(limit, torch._dynamo.config.recompile_limit)
    options |= {"dynamic": False}
    for module in model.blocks:
        if sharded:
            module.forward = torch.compile(module.forward, **options)
        else:
            module.compile(**options)
