"""Measurements with a time limit: each runs in another process, which is killed when its time is over."""

import multiprocessing
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import torch

from twoscale.base import first_line
from twoscale.gpu.report import SKIPPED, Row

KILL_SECONDS = 10.0  # for a process to end
# Warnings that something else runs than the row says. Here they are errors.
ANOTHER_WAY = r"exits\.compile: |exit criterion .* cannot be captured"

Measurement = Callable[..., list[Row]]  # a method of the object of a worker, or a function of it


class Worker:
    """Runs measurements of one object in another process, one at a time.

    A measurement that fails or takes too long may leave an unfinished capture or a broken CUDA context. Its process is
    killed, with all that it started, and the next measurement gets a new one.

    Args:
        make: Returns the object; called in the process, at its first measurement. Pickled, as all measurements.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._process: multiprocessing.process.BaseProcess | None = None

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._pipe.close()  # a process without work ends
            self._process.join(KILL_SECONDS)
        self._kill()

    def start(self, measurement: Measurement, *arguments: Any) -> None:
        """Begin `measurement(object, *arguments)`."""
        if self._process is None:
            spawn = multiprocessing.get_context("spawn")  # a forked process could not use CUDA
            self._pipe, theirs = spawn.Pipe()
            self._process = spawn.Process(target=_serve, args=(theirs, self._make))
            self._process.start()
            theirs.close()
        self._pipe.send((measurement, arguments))

    def rows(self, name: tuple[str, str], seconds: float) -> list[Row]:
        """The rows of the measurement that was started, after at most `seconds`.

        Without a result, one row under `name` (quantity, setting) that says why.
        """
        found = self._receive(seconds)
        if isinstance(found, list):
            return found
        self._kill()
        return [not_measured(name, found)]

    def _receive(self, seconds: float) -> list[Row] | str:
        """The rows, or why there are none."""
        assert self._process is not None
        try:
            return self._pipe.recv() if self._pipe.poll(seconds) else f"not finished after {seconds:.0f} s"
        except (EOFError, OSError):
            self._process.join(KILL_SECONDS)
            return f"its process ended with exit status {self._process.exitcode}"

    def _kill(self) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):  # it has ended, or is so young that it has no group yet
            assert self._process.pid is not None
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join(KILL_SECONDS)
        self._pipe.close()
        self._process = None


def _serve(pipe: Connection, make: Callable[[], Any]) -> None:
    """The process of a worker: send the rows of each measurement, or why there are none."""
    os.setsid()  # a group that is killed as a whole, such as a compiler and the tests
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # of the host, which computes small models only
    warnings.filterwarnings("error", ANOTHER_WAY)
    make = cache(make)
    with suppress(EOFError):
        while True:
            measurement, arguments = pipe.recv()
            try:
                pipe.send(measurement(make(), *arguments))
            except torch.OutOfMemoryError:
                pipe.send("out of memory")
            except Exception as error:
                traceback.print_exc()
                pipe.send(f"{type(error).__name__}: {first_line(error)}")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)


class Clock:
    """The time that is left of `seconds`, from the moment this object is made; all limits are times `slowdown`."""

    def __init__(self, seconds: float, slowdown: float = 1.0) -> None:
        self.start, self.slowdown = time.monotonic(), slowdown
        self.end = self.start + slowdown * seconds

    @property
    def spent(self) -> float:
        return time.monotonic() - self.start

    def grant(self, limit: float) -> float:
        """At most `limit` seconds of the time left; none if less than a third of them is left."""
        limit *= self.slowdown
        seconds = min(limit, self.end - time.monotonic())
        return seconds if seconds > limit / 3 else 0.0

    def measure(
        self, worker: Worker, name: tuple[str, str], limit: float, measurement: Measurement, *given: Any
    ) -> list[Row]:
        """The rows of a measurement that gets at most `limit` seconds, see `Worker.rows`."""
        if not (seconds := self.grant(limit)):
            return [not_measured(name, "no time left")]
        worker.start(measurement, *given)
        return worker.rows(name, seconds)


def not_measured(name: tuple[str, str], reason: str) -> Row:
    return Row(*name, None, "", SKIPPED, reason)
