"""Measurements that end: each has a limit of time, and what goes wrong becomes a row of the report."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from twoscale.errors import first_line
from twoscale.gpu.report import SKIPPED, Row


class Clock:
    """The time that is left of `seconds`, from the moment this object is made; all limits are times `slowdown`."""

    def __init__(self, seconds: float, slowdown: float = 1.0) -> None:
        self.start, self.slowdown = time.monotonic(), slowdown
        self.end = self.start + slowdown * seconds

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    @property
    def spent(self) -> float:
        return time.monotonic() - self.start

    def measure(self, name: tuple[str, str], limit: float, call: Callable[[], list[Row]]) -> list[Row]:
        """The rows of `call`, or one row under `name` (quantity, setting) that says why there is no value.

        `call` gets at most `limit` seconds, and none if less than a third of them is left.
        """
        limit *= self.slowdown
        seconds = min(limit, self.left)
        if seconds < limit / 3:
            return [Row(*name, None, "", SKIPPED, "no time left")]
        try:
            with time_limit(seconds):
                return call()
        except TimeoutError:
            note = f"not finished after {seconds:.0f} s"
        except torch.OutOfMemoryError:
            note = "out of memory"
        except Exception as error:  # one measurement that fails must not end the others
            note = f"{type(error).__name__}: {first_line(error)}"
        return [Row(*name, None, "", SKIPPED, note)]


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside the block after `seconds`. Main thread only."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
