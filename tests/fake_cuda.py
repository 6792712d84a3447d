"""CUDA without a GPU: code runs on fake CUDA tensors, which have a shape, a dtype and a device but no values.

    with fake_cuda() as seen:
        model = seen.on_cuda(build)
        loss = model(...)
        loss.backward()
    assert not seen.syncs

`seen` counts kernels and records where the host waits for the device. An operation on tensors of both devices raises
the RuntimeError that CUDA raises. Autocast, the dtypes of results, autograd and its backward pass are PyTorch's own.

PyTorch without a GPU refuses parts of this, which are replaced while the context is open:

- The guard of CUDA devices is that of the device "meta", which does nothing. Without one a build for the CPU aborts
  as soon as autograd records an operation. `Tensor.to` gets the index of the device that this guard does not know.
- Autograd's engine asks a GPU for its streams. `_Backward` walks the recorded graph in its place. It calls the same
  backward functions; hooks on parameters are not called.
- `F.scaled_dot_product_attention` chooses a kernel by the properties of the GPU. `_attention` chooses as on a GPU of
  compute capability 8.0 or newer.
- Generators are those of the CPU, because they are never drawn from. Pinned memory is a mark on ordinary memory.
  Streams, events and graphs do nothing: the body of a capture runs once, a replay runs nothing.
- Autocast asks whether there is a GPU and whether it knows bfloat16; both are answered with yes.

The code under test may therefore not look at values. A value that the host reads is `seen.value(tensor)`, by default
1, 1.0 or False; arrays of NumPy are zeros; a mask that selects rows selects all.
"""

import ctypes
import heapq
import itertools
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CUDA, META = 1, 14  # numbers of c10::DeviceType
GUARDS = "_ZN3c104impl26device_guard_impl_registryE"  # c10::impl::device_guard_impl_registry
NO_KERNEL = frozenset({"_unsafe_view", "_reshape_alias", "lift_fresh", "_local_scalar_dense", "is_pinned"})
COPIES = frozenset({"_to_copy", "copy_", "_copy_from", "copy"})
INDEXING = frozenset({"index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put"})
SOURCE = f"{Path('src') / 'twoscale'}"


class Seen(TorchDispatchMode):
    """What happened on the device.

    Attributes:
        kernels: Operator -> calls. Views and allocations are none; an operator over a list of tensors is one.
        syncs: "kind path:line" of the line of twoscale -> how often the host waits there. Kinds are "value" (a number
            is read), "rows" (a mask or `nonzero` selects rows, whose number is read), "to host", and "to device" for a
            copy from memory that is not pinned.
        value: What the host reads of a tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.syncs: Counter[str] = Counter()
        self.value: Callable[[Tensor], bool | int | float] = default_value
        self._pinned: dict[int, Any] = {}  # storages by address; kept, so that no other one gets the address

    @staticmethod
    def on_cuda(build: Callable[[], Any]) -> Any:
        """The result of `build`, whose tensors are made on the device "cuda"."""
        with torch.device("cuda"):
            return build()

    def clear(self) -> None:
        """Forget the kernels and waits so far."""
        self.kernels.clear()
        self.syncs.clear()

    def pin(self, tensor: Tensor) -> Tensor:
        """The tensor, as if its memory were pinned."""
        storage = tensor.untyped_storage()
        self._pinned[storage._cdata] = storage
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._pinned

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, name = dict(kwargs or {}), func.overloadpacket.__name__
        if func.namespace == "prim":  # the device of a tensor is read
            return func(*args, **kwargs)
        with self:  # under inference_mode operators arrive before they are decomposed
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        if name == "_local_scalar_dense":
            self._note_sync("value", args[0].is_cuda)
            return self.value(args[0])
        if name == "nonzero":
            return self._selected(args[0])
        if name in INDEXING:
            if _is_fill(name, args):
                name = "masked_fill_"
            args = (args[0], self._indices(args[1], waits=name in INDEXING), *args[2:])
        elif name not in COPIES:
            _check_devices(name, _tensors((args, kwargs)))
        pins = kwargs.pop("pin_memory", None)
        result = func(*args, **kwargs)
        if pins:
            self.pin(result)
        self._note(name, func, (args, kwargs), result)
        return result

    def _note(self, name: str, func: Any, given: Any, result: Any) -> None:
        sources, results = (_tensors(values) for values in (given, result))
        devices = {tensor.device.type for tensor in (*sources, *results)}
        if "cuda" not in devices:
            return
        if not _is_view(func) and not name.startswith(("empty", "new_empty")) and name not in NO_KERNEL:
            self.kernels[name] += 1
        if name in COPIES and "cpu" in devices:
            self._note_copy(name, sources, result, given)
        elif name in INDEXING:
            self._note_sync("to device", any(not tensor.is_cuda for tensor in sources))

    def _note_copy(self, name: str, sources: Sequence[Tensor], result: Tensor, given: Any) -> None:
        target, source = (result, sources[0]) if name == "_to_copy" else (sources[0], sources[1])
        args, kwargs = given
        waits = not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
        host = source if target.is_cuda else target
        # a value without axes travels with the launch of a kernel where it is no copy of its own
        self._note_sync("to device" if target.is_cuda else "to host", waits or not self.is_pinned(host))

    def _note_sync(self, kind: str, happens: bool) -> None:
        if happens:
            self.syncs[f"{kind} {_place()}"] += 1

    def _indices(self, indices: Sequence[Tensor | None], waits: bool) -> list[Tensor | None]:
        """Masks among indices as the rows that they select: all."""
        parts = (self._selected(index, waits).unbind(1) if _is_mask(index) else [index] for index in indices)
        return list(itertools.chain.from_iterable(parts))

    def _selected(self, mask: Tensor, waits: bool = True) -> Tensor:
        self._note_sync("rows", waits and mask.is_cuda)
        return torch.empty(mask.numel(), mask.dim(), dtype=torch.int64, device=mask.device)


class _Generator(torch.Generator):
    """A generator of the CPU, whatever the device."""

    def __new__(cls, device: Any = "cpu") -> "_Generator":
        return super().__new__(cls, "cpu")


def _to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`Tensor.to`, where the guard does not know the index of the current device."""
    kwargs = {name: _indexed(value) for name, value in kwargs.items()}
    return torch._C.TensorBase.to(tensor, *map(_indexed, args), **kwargs)


def _numpy(tensor: Tensor) -> np.ndarray:
    """`Tensor.numpy` with zeros for values."""
    if tensor.is_cuda:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
    return np.zeros(tensor.shape, str(tensor.dtype).removeprefix("torch."))


def _indexed(value: Any) -> Any:
    return "cuda:0" if value in ("cuda", torch.device("cuda")) else value


def _is_mask(index: Tensor | None) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _is_fill(name: str, args: tuple) -> bool:
    """Whether a number is written where one mask is true, for which PyTorch calls `masked_fill_`."""
    if not name.startswith("index_put") or not args[2].is_cpu or args[2].dim():
        return False
    indices = [index for index in args[1] if index is not None]
    return len(indices) == 1 and _is_mask(indices[0])


def default_value(tensor: Tensor) -> bool | int | float:
    """False, 1.0 or 1 by dtype."""
    if tensor.dtype is torch.bool:
        return False
    return 1.0 if tensor.is_floating_point() else 1


@contextmanager
def fake_cuda() -> Iterator[Seen]:
    """A context in which tensors on "cuda" are fake, see the top of this file."""
    seen, mode = Seen(), FakeTensorMode(allow_non_fake_inputs=True)
    replaced = {
        "torch.cuda.amp.common.amp_definitely_not_available": lambda: False,
        "torch.cuda.is_bf16_supported": lambda *args, **kwargs: True,
        "torch.Generator": _Generator,
        "torch.Tensor.to": _to,
        "torch.Tensor.numpy": _numpy,
        "torch.Tensor.pin_memory": lambda tensor, device=None: seen.pin(tensor),
        "torch.Tensor.is_pinned": lambda tensor, device=None: seen.is_pinned(tensor),
        "torch.autograd._engine_run_backward": _run_backward,
        "torch.nn.functional.scaled_dot_product_attention": _attention,
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.stream": lambda stream: nullcontext(),
        "torch.cuda.graph": lambda *args, **kwargs: nullcontext(),
    }
    idle = ("Stream", "Event", "CUDAGraph", "current_stream", "graph_pool_handle", "synchronize")
    with ExitStack() as stack:
        for name, value in replaced.items():
            stack.enter_context(patch(name, value))
        for name in idle:
            stack.enter_context(patch(f"torch.cuda.{name}", MagicMock()))
        torch.cuda.Event.return_value.elapsed_time.return_value = 1.0
        stack.enter_context(_idle_guard())
        stack.enter_context(mode)
        yield stack.enter_context(seen)


@contextmanager
def _idle_guard() -> Iterator[None]:
    """A context in which the guard of CUDA devices is the one of "meta", unless there is a GPU."""
    if torch.cuda.is_available():
        yield
        return
    library = next((Path(torch.__file__).parent / "lib").glob("libc10.*"))
    guards = (ctypes.c_void_p * (META + 1)).in_dll(ctypes.CDLL(str(library)), GUARDS)
    before, guards[CUDA] = guards[CUDA], guards[META]
    try:
        yield
    finally:
        guards[CUDA] = before


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _check_devices(name: str, given: Sequence[Tensor]) -> None:
    """Refuse tensors of both devices, except numbers on the CPU, which are arguments of a kernel."""
    if any(tensor.is_cuda for tensor in given) and any(tensor.is_cpu and tensor.dim() for tensor in given):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"({name} at {_place()})"
        )


def _is_view(func: Any) -> bool:
    aliases = [result.alias_info for result in func._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def _place() -> str:
    """The line of twoscale that runs, as "path:line"."""
    frame = sys._getframe()
    while frame is not None:
        _, found, path = frame.f_code.co_filename.rpartition(SOURCE)
        if found:
            return f"{path[1:]}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside twoscale"


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`F.scaled_dot_product_attention` by the kernel that a GPU would choose.

    Flash attention takes half precision and no mask. Memory-efficient attention takes masks, but no groups of heads
    and no float64. The rest is composed of other operators, which write all attention weights.
    """
    if torch.is_autocast_enabled("cuda") and q.is_cuda and q.dtype is not torch.float64:
        q, k, v = (heads.to(torch.get_autocast_dtype("cuda")) for heads in (q, k, v))
    if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16) and attn_mask is None:
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]
    if q.is_cuda and q.dtype is not torch.float64 and not enable_gqa:
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill_(~attn_mask, -torch.inf)
        bias = None if attn_mask is None else attn_mask.expand(*q.shape[:3], k.shape[2])
        efficient = torch.ops.aten._scaled_dot_product_efficient_attention
        return efficient(q, k, v, bias, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale)[0]
    return torch.ops.aten._scaled_dot_product_attention_math(
        q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _run_backward(
    tensors: Sequence[Tensor], gradients: Sequence[Tensor | None], *options: Any, **more: Any
) -> tuple[Tensor, ...]:
    """What `Tensor.backward` calls: walk the graph from the last operation to the first."""
    walk = _Backward()
    for tensor, gradient in zip(tensors, gradients, strict=True):
        walk.give((tensor.grad_fn, tensor.output_nr), torch.ones_like(tensor) if gradient is None else gradient)
    # `checkpoint` recomputes once per task
    with torch.no_grad(), patch("torch._C._current_graph_task_id", lambda: id(walk)):
        walk.run()
    return ()


class _Backward:
    """A backward pass without autograd's engine: sums the gradients of each node, then calls it."""

    def __init__(self) -> None:
        self.gradients: dict[Any, dict[int, Tensor]] = defaultdict(dict)  # node -> number of its input -> gradient
        self.waiting: list[tuple[float, int, Any]] = []
        self.count = itertools.count()

    def give(self, edge: tuple[Any, int], gradient: Tensor | None) -> None:
        """Add a gradient to an input of a node."""
        node, number = edge
        if node is None or gradient is None:
            return
        if node not in self.gradients:
            heapq.heappush(self.waiting, (-_order(node), next(self.count), node))
        expected, known = node._input_metadata[number], self.gradients[node]
        if gradient.shape != torch.Size(expected.shape):
            gradient = gradient.sum_to_size(expected.shape)
        gradient = gradient.to(expected.dtype)
        known[number] = known[number] + gradient if number in known else gradient

    def run(self) -> None:
        """Call the nodes, those first that were recorded last."""
        while self.waiting:
            *_, node = heapq.heappop(self.waiting)
            gradients = self.gradients.pop(node)
            given = [gradients.get(number) for number in range(len(node._input_metadata))]
            results = node.apply(*given) if hasattr(node, "apply") else node(*given)
            results = results if isinstance(results, tuple) else (results,)
            for edge, result in zip(node.next_functions, results, strict=False):
                self.give(edge, result)


def _order(node: Any) -> float:
    # leaves come last, as in autograd's engine
    return -math.inf if type(node).__name__ == "AccumulateGrad" else node._sequence_nr()
