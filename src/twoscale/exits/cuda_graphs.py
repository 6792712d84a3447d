"""Loop steps as captured CUDA graphs, and booleans that reach the host without a wait."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

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
        if like.is_cuda:
            self._steps = self._capture_all(steps)
        else:
            self._steps = {step: partial(self._compute, *step) for step in steps}

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

    def _capture_all(self, steps: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Callable[[], Tensor]]:
        side, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()  # shared by all graphs
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries initialise at their first call, which no graph may contain
            for group in range(len(self.model.config.groups)):
                self._compute(group, 0)
        torch.cuda.current_stream().wait_stream(side)
        return {step: self._capture(*step, side, pool) for step in steps}

    def _capture(self, group: int, k: int, side: "torch.cuda.Stream", pool: tuple[int, int]) -> Callable[[], Tensor]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=side):
            result = self._compute(group, k)

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
