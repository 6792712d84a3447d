"""CUDA without a GPU: code runs on fake CUDA tensors, which have a shape, a dtype and a device but
no values.

    with fake_cuda() as seen:
        model = seen.on_cuda(build)
        model(...)
    assert not seen.syncs

`seen` counts kernels and records where the host waits for the device. An operation on tensors of
both devices raises. There is no backward pass. What the host reads of a tensor is
`seen.value(tensor)`, by default 1, 1.0 or False; arrays of NumPy are zeros; a mask selects all
rows. The body of a captured graph runs once, a replay runs nothing.
"""

import ctypes
import itertools
import sys
from collections import Counter
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
NO_KERNEL = frozenset(
    {"_unsafe_view", "_reshape_alias", "lift_fresh", "_local_scalar_dense", "is_pinned"}
)
COPIES = frozenset({"_to_copy", "copy_", "_copy_from", "copy"})
INDEXING = frozenset({"index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put"})
SOURCE = f"{Path('src') / 'twoscale'}"


class Seen(TorchDispatchMode):
    """What happened on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()  # operator -> calls; views and allocations are none
        # "kind path:line" -> how often the host waits there: "value" (a number is read), "rows" (a
        # mask selects rows, whose number is read), "to host", or "to device" (a copy from memory
        # that is not pinned)
        self.syncs: Counter[str] = Counter()
        self.value: Callable[[Tensor], bool | int | float] = default_value
        self._pinned: dict[
            int, Any
        ] = {}  # storages by address; kept, so that no other one gets the address

    def on_cuda(self, build: Callable[[], Any]) -> Any:
        with torch.device("cuda"):
            return build()

    def clear(self) -> None:
        self.kernels.clear()
        self.syncs.clear()

    def pin(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._pinned[storage._cdata] = storage
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._pinned

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
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
            masks = [index for index in args[1] if index is not None]
            if (
                name.startswith("index_put")
                and args[2].is_cpu
                and not args[2].dim()
                and all(map(_is_mask, masks))
            ):
                name = "masked_fill_"  # which PyTorch calls to write a number
            parts = (
                self._selected(i, name in INDEXING).unbind(1) if _is_mask(i) else [i]
                for i in args[1]
            )
            args = (args[0], list(itertools.chain.from_iterable(parts)), *args[2:])
        elif name not in COPIES:
            given = _tensors((args, kwargs))
            # numbers on the CPU are arguments of a kernel
            if any(tensor.is_cuda for tensor in given) and any(
                tensor.is_cpu and tensor.dim() for tensor in given
            ):
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found two devices ({name})"
                )
        pins = kwargs.pop("pin_memory", None)
        result = func(*args, **kwargs)
        if pins:
            self.pin(result)
        self._note(name, func, args, kwargs, result)
        return result

    def _note(self, name: str, func: Any, args: tuple, kwargs: dict, result: Any) -> None:
        sources = _tensors((args, kwargs))
        devices = {tensor.device.type for tensor in (*sources, *_tensors(result))}
        if "cuda" not in devices:
            return
        if (
            not _is_view(func)
            and not name.startswith(("empty", "new_empty"))
            and name not in NO_KERNEL
        ):
            self.kernels[name] += 1
        if name in COPIES and "cpu" in devices:
            target, source = (
                (result, sources[0]) if name == "_to_copy" else (sources[0], sources[1])
            )
            waits = not (
                kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
            )
            waits = waits or not self.is_pinned(source if target.is_cuda else target)
            self._note_sync("to device" if target.is_cuda else "to host", waits)
        elif name in INDEXING:
            self._note_sync("to device", any(not tensor.is_cuda for tensor in sources))

    def _note_sync(self, kind: str, happens: bool) -> None:
        if happens:
            self.syncs[f"{kind} {_place()}"] += 1

    def _selected(self, mask: Tensor, waits: bool = True) -> Tensor:
        """The rows that a mask selects: all."""
        self._note_sync("rows", waits and mask.is_cuda)
        return torch.empty(mask.numel(), mask.dim(), dtype=torch.int64, device=mask.device)


class _Generator(torch.Generator):
    def __new__(cls, device: Any = "cpu") -> "_Generator":
        return super().__new__(cls, "cpu")


def _to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`Tensor.to`, where the guard does not know the index of the current device."""
    indexed = lambda value: "cuda:0" if value in ("cuda", torch.device("cuda")) else value  # noqa: E731
    return torch._C.TensorBase.to(
        tensor, *map(indexed, args), **{name: indexed(v) for name, v in kwargs.items()}
    )


def _is_mask(index: Tensor | None) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def default_value(tensor: Tensor) -> bool | int | float:
    return False if tensor.dtype is torch.bool else 1.0 if tensor.is_floating_point() else 1


def _attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any
) -> Tensor:
    """The kernel that a GPU would choose: one of flash attention takes half precision and no
    mask.
    """
    given = {
        "dropout_p": 0.0,
        "is_causal": options.get("is_causal", False),
        "scale": options.get("scale"),
    }
    if torch.is_autocast_enabled("cuda") and q.is_cuda:
        q, k, v = (heads.to(torch.get_autocast_dtype("cuda")) for heads in (q, k, v))
    if q.is_cuda and q.dtype is torch.bfloat16 and attn_mask is None:
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, **given)[0]
    if q.is_cuda and not options.get("enable_gqa"):
        bias = None if attn_mask is None else attn_mask.to(q.dtype).expand(*q.shape[:3], k.shape[2])
        efficient = torch.ops.aten._scaled_dot_product_efficient_attention
        return efficient(q, k, v, bias, torch.is_grad_enabled(), **given)[0]
    grouped = options.get("enable_gqa", False)
    return torch.ops.aten._scaled_dot_product_attention_math(
        q, k, v, attn_mask, **given, enable_gqa=grouped
    )[0]


@contextmanager
def fake_cuda() -> Iterator[Seen]:
    library, seen = next((Path(torch.__file__).parent / "lib").glob("libc10.*")), Seen()
    guards = (ctypes.c_void_p * (META + 1)).in_dll(ctypes.CDLL(str(library)), GUARDS)
    replaced = {
        "torch.cuda.amp.common.amp_definitely_not_available": lambda: False,
        "torch.cuda.is_bf16_supported": lambda *args, **kwargs: True,
        "torch.Generator": _Generator,
        "torch.Tensor.to": _to,
        "torch.Tensor.numpy": lambda tensor: np.zeros(
            tensor.shape, str(tensor.dtype).removeprefix("torch.")
        ),
        "torch.Tensor.pin_memory": lambda tensor, device=None: seen.pin(tensor),
        "torch.Tensor.is_pinned": lambda tensor, device=None: seen.is_pinned(tensor),
        "torch.nn.functional.scaled_dot_product_attention": _attention,
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.stream": lambda stream: nullcontext(),
    }
    idle = (
        "Stream",
        "Event",
        "CUDAGraph",
        "current_stream",
        "graph_pool_handle",
        "synchronize",
        "set_sync_debug_mode",
    )
    with ExitStack() as stack:
        for name, value in (
            replaced | {f"torch.cuda.{name}": MagicMock() for name in idle}
        ).items():
            stack.enter_context(patch(name, value))
        torch.cuda.Event.return_value.elapsed_time.return_value = 1.0
        stack.callback(guards.__setitem__, CUDA, guards[CUDA])
        guards[CUDA] = guards[
            META
        ]  # the guard of "meta" does nothing; without one an operation aborts
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield stack.enter_context(seen)


def _tensors(values: Any) -> Sequence[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _is_view(func: Any) -> bool:
    aliases = [result.alias_info for result in func._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def _place() -> str:
    frame = sys._getframe()
    while frame is not None:
        _, found, path = frame.f_code.co_filename.rpartition(SOURCE)
        if found:
            return f"{path[1:]}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside twoscale"
