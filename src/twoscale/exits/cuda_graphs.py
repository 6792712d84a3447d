"""Loop steps as captured CUDA graphs, and booleans that reach the host without a wait."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from twoscale.exits.batched_cache import BatchedKVCache, Step
from twoscale.exits.kv_cache import KVCache
from twoscale.model.interface import LoopedModel, any_weight


class CapturedSteps:
    """Loop steps of the one token at `position` of a cache, (1, C) -> (1, C).

    On CUDA a step is the replay of a graph, one a group and loop step, captured when this object is made: one
    call for the host in place of the twenty kernels of a layer. A graph has fixed addresses and shapes, so
    state, input and position are copied to where it reads them, and attention covers the whole context under
    a mask; the cache behind the position therefore has to be finite. The function that computes a step is the
    same with and without capture.
    """

    runs_ahead = True
    masks = True

    def __init__(self, model: LoopedModel, cache: KVCache, max_loops: int) -> None:
        like = any_weight(model)
        self.model, self.cache = model, cache
        self.position = torch.zeros(1, dtype=torch.int64, device=like.device)
        self.state, self.injected = (like.new_zeros(1, model.config.hidden_size) for _ in range(2))
        steps = [(group, k) for group in range(len(model.config.groups)) for k in range(max_loops)]
        self._steps = _captured({step: partial(self._compute, *step) for step in steps}, like.is_cuda)

    def begin(self, position: int, injected: Tensor) -> None:
        """Set what is constant while a token loops in a group."""
        self.position.fill_(position)
        self.injected.copy_(injected)

    def __call__(self, group: int, k: int, state: Tensor) -> Tensor:
        self.state.copy_(state)
        return self._steps[group, k]()

    def _compute(self, group: int, k: int) -> Tensor:
        attend = self.cache.attend_parallel(k, self.position, self.model.config.context_length)
        return self.model.recur(group, k, self.state, self.injected, attend)


class CapturedBatchSteps:
    """Loop steps of up to S tokens of different sequences, (N, C) -> (N, C), each at its own k and position.

    As `CapturedSteps`, but with a graph for each group and each of the sizes 1, 2, 4, … S. A batch is filled up to the
    next size with copies of its last row, which write what that row writes. Attention covers the whole cache, which
    therefore has to be finite.
    The loop steps of the model have to be the same function at every k.
    """

    def __init__(self, model: LoopedModel, cache: BatchedKVCache) -> None:
        like = any_weight(model)
        self.model, self.cache = model, cache
        sequences = len(cache.places)
        self._sizes = [*(2**i for i in range((sequences - 1).bit_length())), sequences]
        states = (like.new_zeros(sequences, model.config.hidden_size) for _ in range(2))
        numbers = (torch.zeros(sequences, dtype=torch.int64, device=like.device) for _ in range(2))
        self._inputs = (*states, *numbers)  # states, inputs, rows of the cache and positions, read by all graphs
        steps = [(group, size) for group in range(len(model.config.groups)) for size in self._sizes]
        self._steps = _captured({step: partial(self._compute, *step) for step in steps}, like.is_cuda)

    def __call__(self, group: int, state: Tensor, injected: Tensor, steps: Sequence[Step], positions: Tensor) -> Tensor:
        """One loop step of N tokens at `steps`: states, inputs (N, C) and positions (N,) -> (N, C)."""
        size = next(size for size in self._sizes if size >= len(steps))
        for held, given in zip(self._inputs, (state, injected, self.cache.rows_of(steps), positions), strict=True):
            held[: len(steps)] = given
            held[len(steps) : size] = given[-1]
        return self._steps[group, size]()[: len(steps)]

    def _compute(self, group: int, size: int) -> Tensor:
        state, injected, rows, positions = (held[:size] for held in self._inputs)
        return self.model.recur(group, 0, state, injected, self.cache.attend_gathered(rows, positions))


Compute = Callable[[], Tensor]
StepKey = tuple[int, int]


def _captured(steps: Mapping[StepKey, Compute], on_cuda: bool) -> Mapping[StepKey, Compute]:
    """The replay of a graph of each step; without CUDA the steps themselves."""
    if not on_cuda:
        return steps
    side, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()  # shared by all graphs
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # libraries initialise at their first call, which no graph may contain
        for compute in steps.values():
            compute()
    torch.cuda.current_stream().wait_stream(side)
    return {step: _capture(compute, side, pool) for step, compute in steps.items()}


def _capture(compute: Compute, side: "torch.cuda.Stream", pool: tuple[int, int]) -> Compute:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=side):
        result = compute()

    def replay() -> Tensor:
        graph.replay()
        return result.clone()  # the graphs share memory: the next replay of any of them may overwrite it

    return replay


class AsyncFlags:
    """Double-buffered asynchronous transfer of one bool from the device to the host."""

    def __init__(self) -> None:
        self._buffers = [(torch.empty(1, dtype=torch.bool, pin_memory=True), torch.cuda.Event()) for _ in range(2)]

    def send(self, flag: Tensor) -> Callable[[], bool]:
        """Start the transfer of a bool tensor (1,); the function returned waits for it."""
        host, arrived = self._buffers[0]
        self._buffers.reverse()
        host.copy_(flag, non_blocking=True)
        arrived.record()

        def read() -> bool:
            arrived.synchronize()
            return bool(host)

        return read
