"""Kernels that decoding takes on a GPU, counted without a GPU and without Triton: as it is, and compiled.

To count what PyTorch's compiler launches, a function is traced on fake CUDA tensors (`tests.fake_cuda`), brought into
the form that the compiler gets, and lowered and fused for a GPU of compute capability 9.0. There the compiler is
stopped, before it writes code.
"""

import warnings
from collections import Counter, namedtuple
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any
from unittest.mock import patch

import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import detect_fake_mode
from torch._inductor import compile_fx, ir, scheduler
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.virtualized import V
from torch.fx.experimental.proxy_tensor import make_fx

from tests.fake_cuda import Seen
from twoscale import config
from twoscale.exits.captured_loops import CapturedLoops, Loop, make_recur
from twoscale.exits.criteria import ExitCriterion
from twoscale.model import registry
from twoscale.model.interface import LoopedModel

PROPERTIES = """
name major minor total_memory multi_processor_count regs_per_multiprocessor max_threads_per_multi_processor
warp_size L2_cache_size shared_memory_per_block shared_memory_per_block_optin gcnArchName
"""
DEVICE = namedtuple("Device", PROPERTIES)(
    *("a GPU", 9, 0, 2**37, 132, 2**16, 2048),
    *(32, 60 * 2**20, 48 * 2**10, 227 * 2**10, ""),
)
# What the compiler asks about the device.
ANSWERS: dict[str, Callable] = {
    "torch._inductor.scheduler.has_triton": lambda *device: True,
    "torch.cuda.get_device_properties": lambda *device: DEVICE,
    "torch.cuda._get_device_properties": lambda *device: DEVICE,
    "torch.cuda.get_device_capability": lambda *device: (9, 0),
    "torch.cuda.is_available": lambda: True,
    "torch.cuda.device_count": lambda: 1,
    "torch.cuda.get_rng_state": lambda *device: torch.zeros(16, dtype=torch.uint8),
    "torch.cuda.set_rng_state": lambda *state: None,
    "torch.cuda._exchange_device": lambda device: 0,
    "torch.cuda._maybe_exchange_device": lambda device: 0,
    "torch.cuda._lazy_init": lambda: None,
}


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


class _Counted(Exception):
    """Stops the compiler."""


def of_compiled_step(seen: Seen, loops: CapturedLoops, group: int) -> Counter[str]:
    """Kernels of a compiled loop step: matrix products and other "extern" ones, and "generated" ones."""
    *tensors, stored = loops.arguments(group, 0, loops.x0)
    recur, found = make_recur(loops.model, group), Counter()

    def count(self: scheduler.Scheduler) -> None:
        for node in self.nodes:
            if isinstance(node, scheduler.ExternKernelSchedulerNode):
                found["extern"] += not isinstance(node.node, ir.MultiOutput)  # one of several results
            elif not isinstance(node, scheduler.NopKernelSchedulerNode):
                found["generated"] += 1
        raise _Counted

    seen.__exit__(None, None, None)
    try:
        graph, inputs = _as_compiled(lambda *x: recur(0, *x[: len(tensors)], x[len(tensors) :]), [*tensors, *stored])
        with ExitStack() as stack:
            for name, answer in ANSWERS.items():
                stack.enter_context(patch(name, answer, create=True))
            stack.enter_context(patch.object(scheduler.Scheduler, "codegen", count))
            stack.enter_context(V.set_fake_mode(detect_fake_mode(inputs)))
            stack.enter_context(torch._inductor.config.patch(fx_graph_cache=False))
            stack.enter_context(warnings.catch_warnings(action="ignore"))
            with suppress(torch._inductor.exc.InductorError):
                compile_fx.compile_fx_inner(graph, inputs)
    finally:
        seen.__enter__()
    assert found, "the compiler did not come to the point where kernels are fused"
    return found


def _as_compiled(function: Callable[..., Tensor], arguments: Sequence[Tensor]) -> tuple[torch.fx.GraphModule, Any]:
    """The graph that the compiler gets, and its inputs: the arguments and the weights."""
    found = []

    def keep(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable:
        found.append((graph, inputs))
        return make_boxed_func(graph.forward)

    with torch.no_grad():
        traced = make_fx(lambda *tensors: (function(*tensors),), tracing_mode="real")(*arguments)
        options = {"decompositions": select_decomp_table(), "keep_inference_input_mutations": True}
        aot_module_simplified(traced, arguments, fw_compiler=keep, inference_compiler=keep, **options)
    return found[0]
