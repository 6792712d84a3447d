"""The numbers and seconds of work on a device, read without waiting for what is queued after it."""

import time

import torch
from torch import Tensor


class Timer:
    """Times work from its construction to `stop`; `read` waits for it and for nothing else.

    On CUDA events on the current stream are the clock, and numbers are copied to pinned memory after the work.
    """

    def __init__(self, device: str) -> None:
        self._on_cuda = device == "cuda"
        self._started = self._now()

    def stop(self, *numbers: Tensor) -> None:
        """All work has been queued; it results in the tensors () of one dtype."""
        self._numbers = torch.stack(numbers)
        if self._on_cuda:
            pinned = torch.empty(len(numbers), dtype=self._numbers.dtype, pin_memory=True)
            self._numbers = pinned.copy_(self._numbers, non_blocking=True)
        self._stopped = self._now()

    def read(self) -> tuple[list[float], float]:
        """The numbers, and the seconds that the work took."""
        if not self._on_cuda:
            return self._numbers.tolist(), self._stopped - self._started
        self._stopped.synchronize()
        return self._numbers.tolist(), self._started.elapsed_time(self._stopped) / 1000

    def _now(self) -> "float | torch.cuda.Event":
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
