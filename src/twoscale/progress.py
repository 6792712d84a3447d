"""Progress meters: a bar on a terminal, a plain line every few seconds in a log."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

LOG_SECONDS = 10.0  # between two lines in a log
WITH_TOTAL = "{l_bar} {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
WITHOUT_TOTAL = "{desc}: {n_fmt} [{elapsed}, {rate_fmt}{postfix}]"


class _LogLines:
    """The part of tqdm's interface that meters offer, with whole lines instead of carriage returns."""

    def __init__(self, label: str, total: int | None, unit: str, initial: int) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done, self.initial, self.note = initial, initial, ""
        self.start = self.last = time.monotonic()

    def set_postfix_str(self, note: str, refresh: bool = False) -> None:
        self.note = note

    def update(self, amount: int = 1) -> None:
        self.done += amount
        if time.monotonic() - self.last >= LOG_SECONDS:
            self.line()

    def line(self) -> None:
        self.last = time.monotonic()
        text = tqdm.format_meter(
            self.done,
            self.total,
            self.last - self.start,
            prefix=self.label,
            unit=self.unit,
            unit_scale=True,
            initial=self.initial,
            postfix=self.note or None,
            bar_format=WITH_TOTAL if self.total else WITHOUT_TOTAL,
        )
        print(text, file=sys.stderr, flush=True)


@contextmanager
def meter(label: str, total: int | None, unit: str, initial: int = 0, visible: bool = True) -> Iterator:
    """Yield an object with `update(amount)` and `set_postfix_str(note)` that prints progress on standard error.

    Args:
        label: Name of the work.
        total: Amount of work in `unit`; None if unknown.
        unit: Unit of `total` and of rates.
        initial: Amount that an earlier process completed.
        visible: False prints nothing, for all but one of several processes that work together.
    """
    if not visible or sys.stderr.isatty():
        options: dict[str, Any] = {"unit": unit, "unit_scale": True, "initial": initial, "disable": not visible}
        with tqdm(desc=label, total=total, file=sys.stderr, **options) as bar:
            yield bar
        return
    lines = _LogLines(label, total, unit, initial)
    yield lines
    lines.line()
