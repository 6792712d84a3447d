"""Kernels that decoding takes on a GPU, counted without a GPU, on fake CUDA tensors (`tests.fake_cuda`)."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tests.fake_cuda import Seen
from twoscale import config
from twoscale.exits.captured_loops import CapturedLoops, Loop
from twoscale.exits.criteria import ExitCriterion
from twoscale.model import registry
from twoscale.model.interface import LoopedModel


def model_on(seen: Seen, preset: str, dtype: torch.dtype = torch.float32, **changes: Any) -> LoopedModel:
    """The model of a preset with other keys."""
    values = config.preset(preset)
    values["model"] = values["model"] | changes
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # `Module.to` swaps tensors, which fake ones refuse
    try:
        return seen.on_cuda(lambda: registry.build(config.checked(values).model)).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)


def kernels(seen: Seen, call: Callable[[], object]) -> int:
    """Kernels of a call, in which RMSNorm is one, as on a GPU."""

    def rms_norm(x: Tensor, *arguments: Any) -> Tensor:
        seen.kernels["rms_norm"] += 1
        return torch.empty_like(x)

    seen.clear()
    with torch.inference_mode(), patch("torch.rms_norm", rms_norm):
        call()
    return seen.kernels.total()


def of_decisions(seen: Seen, loops: CapturedLoops, criterion: ExitCriterion, steps: int) -> float:
    """Kernels that the decisions add to each loop step, in a graph of so many steps that is not the first."""
    counts = []
    for decides in (criterion, None):
        loop = Loop(loops, 0, decides)
        loop(0, steps)
        counts.append(kernels(seen, lambda loop=loop: loop(steps, 2 * steps)))
    return (counts[0] - counts[1]) / steps
