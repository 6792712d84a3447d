"""Loop steps compiled to machine code ahead of time, for decoding on the CPU."""

import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._inductor import aoti_compile_and_package, aoti_load_package
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch.export import ExportedProgram, export

from twoscale.errors import InputError
from twoscale.exits.kv_cache import KVCache, attend_at
from twoscale.exits.prepared import by_columns, for_rows
from twoscale.files import private_folder, replacing
from twoscale.model.interface import LoopedModel, any_weight

Compiled = Callable[[list[Tensor]], list[Tensor]]


class CompiledSteps:
    """Loop steps of the one token at `position` of a cache, (1, C) -> (1, C), compiled by a C++ compiler.

    `recur` of each group is exported as a graph, which the inductor compiles to one function; weights and cache are
    its arguments. Compiled functions are kept in the cache folder of the inductor (TORCHINDUCTOR_CACHE_DIR), under a
    name that is a hash of the graph, and loaded by later runs. Attention covers the whole context under a mask, so
    the cache behind the position has to be finite.
    """

    runs_ahead = False
    masks = True

    def __init__(self, model: LoopedModel, cache: KVCache, max_loops: int) -> None:
        if not has_compiler():
            raise InputError("exits.compile: found no C++ compiler (g++, clang++), expected one or false.")
        with torch.inference_mode(False), torch.no_grad():
            by_column = by_columns(model)
            self.model = for_rows(by_column)
            self._make(by_column, cache, max_loops)

    def _make(self, model: LoopedModel, cache: KVCache, max_loops: int) -> None:
        self._position = torch.zeros(1, dtype=torch.int64)
        self._injected = any_weight(model).new_zeros(1, model.config.hidden_size)
        self._functions: list[Compiled] = []  # group -> compiled function
        self._weights: list[dict[str, Tensor]] = []  # group -> its weights, which a function only points to
        self._slots = []  # group -> slot -> keys and values of each layer, (2, 1, G, T, D)
        for group, layers in enumerate(model.config.groups):
            slots = list(zip(*(cache.stored[layer] for layer in layers), strict=True))
            function, weights = self._compile(model, group, max_loops, slots[0])
            self._functions.append(function)
            self._weights.append(weights)
            self._slots.append(slots)

    def begin(self, position: int, injected: Tensor) -> None:
        """Set what is constant while a token loops in a group."""
        self._position.fill_(position)
        self._injected = injected

    def __call__(self, group: int, k: int, state: Tensor) -> Tensor:
        slots = self._slots[group]
        return self._functions[group]([state, self._injected, self._position, *slots[k % len(slots)]])[0]

    def _compile(
        self, model: LoopedModel, group: int, max_loops: int, stored: Sequence[Tensor]
    ) -> tuple[Compiled, dict[str, Tensor]]:
        tensors = self._injected, self._injected, self._position, *stored
        state, injected, position, *stored = (torch.zeros_like(tensor) for tensor in tensors)
        arguments = state, injected, position, tuple(stored)
        first, last = (export(_Step(model, group, k).eval(), arguments) for k in (0, max_loops - 1))
        if _text(first) != _text(last):
            raise InputError(
                "exits.compile: found a model whose loop steps differ, expected false or one that is the same function "
                "at every k."
            )
        return _load(first)


class _Step(nn.Module):
    """One loop step as a function of tensors: what is exported."""

    def __init__(self, model: LoopedModel, group: int, k: int) -> None:
        super().__init__()
        self.model, self.group, self.k = model, group, k

    def forward(self, state: Tensor, injected: Tensor, position: Tensor, stored: Sequence[Tensor]) -> Tensor:
        """State and input (1, C), position (1,) and keys and values (2, 1, G, T, D) of each layer -> state (1, C)."""
        layers = self.model.config.groups[self.group]
        views = {layer: [tuple(of_layer)] for layer, of_layer in zip(layers, stored, strict=True)}
        attend = attend_at(views, 0, position, self.model.config.context_length)
        return self.model.recur(self.group, self.k, state, injected, attend)


def has_compiler() -> bool:
    """Whether a C++ compiler is found."""
    return any(map(shutil.which, ("g++", "clang++", "c++")))


def cache_folder() -> Path:
    """Where compiled functions are kept between runs."""
    return private_folder(Path(cache_dir()), "TORCHINDUCTOR_CACHE_DIR") / "twoscale"


def _text(program: ExportedProgram) -> str:
    """The graph with the shapes, strides and dtypes of its tensors, without values of weights and lines of code."""
    text = program.graph_module.print_readable(print_output=False, include_stride=True, include_device=True)
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))


def _load(program: ExportedProgram) -> tuple[Compiled, dict[str, Tensor]]:
    """The compiled function of a program, from the cache folder if it is there, and the weights that it points to."""
    machine = f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()}"
    key = hashlib.sha256(f"{machine}\n{_text(program)}".encode()).hexdigest()
    package = cache_folder() / f"{key}.pt2"
    if not package.is_file():
        _compile(program, package)
    compiled = aoti_load_package(str(package))
    constants = {**program.state_dict, **program.constants}
    used = {name: constants[name] for name in compiled.get_constant_fqns()}  # not the weights of other groups
    compiled.load_constants(used, check_full_update=True, user_managed=True)
    return compiled.loader.boxed_run, used


def _compile(program: ExportedProgram, package: Path) -> None:
    package.parent.mkdir(parents=True, exist_ok=True)
    options = {"aot_inductor.package_constants_in_so": False}
    with replacing(package) as temporary:
        compiled = aoti_compile_and_package(program, package_path=f"{temporary}.pt2", inductor_configs=options)
        Path(compiled).rename(temporary)
