"""Training while it runs: the file metrics.csv, a line a minute on the terminal, and event files for TensorBoard.

All three show rows of the log of a segment, which the tables "training" and "training_loops" have in full once the
segment ends. Nothing here waits for the device: the numbers of a row are already on the host.
"""

import importlib.util
import os
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from twoscale import tables
from twoscale.base import InputError, replacing
from twoscale.config import ModelConfig, TrainConfig

METRICS = "metrics.csv"
EVENT_FILES = "events.out.tfevents.*"
TIME_LEFT = ("segment_left_s", "run_left_s")
STDOUT, STDERR = 1, 2

Row = Mapping[str, Any]
Record = Callable[[Row], object]


class MonitorConfig(Protocol):
    """The config of this module: a slice with `model` and `train`."""

    model: ModelConfig
    train: TrainConfig


@dataclass(frozen=True)
class SegmentView:
    """A segment to show: its run and last iteration, the finished iterations, and the folder for the files.

    `log` has the rows of those finished iterations that belong to this segment, as a partial state keeps them.
    """

    run: str
    until: int
    iteration: int
    log: Sequence[Row]
    folder: Path


def check_tracker(train: TrainConfig) -> None:
    """Raise InputError if the package of train.tracker is not installed."""
    if train.tracker != "none" and importlib.util.find_spec(train.tracker) is None:
        raise InputError(
            f"config key train.tracker: found '{train.tracker}', but the Python package {train.tracker} is not "
            f"installed; run `pip install {train.tracker}`, or set train.tracker: none."
        )


def ignore(row: Row) -> None:
    """Show nothing."""


@contextmanager
def monitoring(config: MonitorConfig, view: SegmentView, visible: bool = True) -> Iterator[Record]:
    """Yield a function that shows a row of the log; call it once for each iteration, after its last measurement.

    Args:
        config: The config of the segment.
        view: The segment.
        visible: False shows and writes nothing, for all but one of several processes that train together.
    """
    if not visible:
        yield ignore
        return
    with ExitStack() as stack:
        writers = [stack.enter_context(csv_writer(config, view))]
        if config.train.tracker == "tensorboard":
            writers.append(stack.enter_context(event_writer(config, view)))
        yield Monitor(config.train, view, writers).record


class Monitor:
    """Passes rows on: to the writers every train.log_every iterations, to the terminal every train.print_seconds.

    The terminal shows the last iteration of a segment too, however short the segment is.
    """

    def __init__(self, train: TrainConfig, view: SegmentView, writers: Sequence[Record]) -> None:
        self.train, self.view, self.writers = train, view, writers
        self.clock, self.printed = Clock(), time.monotonic()

    def record(self, row: Row) -> None:
        self.clock.tick()
        remaining = (self.view.until - row["iteration"], self.train.iterations - row["iteration"])
        row = {**row, **dict(zip(TIME_LEFT, map(self.clock.seconds, remaining), strict=True))}
        if is_shown(row, self.train):
            for write in self.writers:
                write(row)
        if time.monotonic() - self.printed >= self.train.print_seconds or row["iteration"] == self.view.until:
            self.printed = time.monotonic()
            print_on_terminal(terminal_line(row, self.view))


def is_shown(row: Row, train: TrainConfig) -> bool:
    """Whether the files have this row: every train.log_every iterations, and where the held-out loss is measured."""
    return row["iteration"] % train.log_every == 0 or row["held_out_loss"] is not None


class Clock:
    """Estimates time from the mean time of the iterations of this process, measurements and saves included.

    The first iteration, in which models are compiled, counts only as long as there is no other.
    """

    def __init__(self) -> None:
        self.start, self.count = time.monotonic(), 0
        self.first = self.last = self.start

    def tick(self) -> None:
        """Count an iteration that ends now."""
        self.last, self.count = time.monotonic(), self.count + 1
        if self.count == 1:
            self.first = self.last

    def seconds(self, iterations: int) -> float:
        """Estimated seconds of this number of iterations, after at least one."""
        if self.count == 1:
            return iterations * (self.last - self.start)
        return iterations * (self.last - self.first) / (self.count - 1)


# --- CSV ---------------------------------------------------------------------------------------------------------


def metrics_of(row: Row, groups: Sequence[str]) -> dict[str, int | float | None]:
    """The columns of the CSV: the table "training", the time left in s, and the loops of each group."""
    names = (*tables.columns("training"), *TIME_LEFT)
    loops = zip(groups, row["loops"], strict=True)
    return {name: row.get(name) for name in names} | {f"loops_{group}": count for group, count in loops}


@contextmanager
def csv_writer(config: MonitorConfig, view: SegmentView) -> Iterator[Record]:
    """Append to metrics.csv, which first gets the content that belongs to the iterations before this process.

    The file is replaced rather than cut where a segment is resumed, so that a process of a killed Snakemake that
    still writes does not write into it. Otherwise it is the same file, which `tail -f` can follow.
    """
    path, groups = view.folder / METRICS, config.model.group_labels
    header = ",".join(metrics_of({"loops": [0] * len(groups)}, groups)) + "\n"
    found = path.read_text(errors="replace") if path.exists() else ""
    lines = whole_lines(found, header, view.iteration)
    for row in view.log:  # those that the file lost or that an earlier train.log_every left out
        if is_shown(row, config.train):
            lines.setdefault(row["iteration"], csv_line(row, groups))
    wanted = header + "".join(lines[iteration] for iteration in sorted(lines))
    if view.log or found != wanted:
        with replacing(path) as temporary:
            temporary.write_text(wanted)
    with path.open("a", buffering=1) as file:  # line by line
        yield lambda row: file.write(csv_line(row, groups))


def csv_line(row: Row, groups: Sequence[str]) -> str:
    return ",".join(map(_cell, metrics_of(row, groups).values())) + "\n"


def _cell(value: int | float | None) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def whole_lines(text: str, header: str, until: int) -> dict[int, str]:
    """Iteration -> line, of the whole lines of a metrics.csv up to iteration `until`; none under another header."""
    first, *lines = text.splitlines(keepends=True) or [""]
    if first != header:
        return {}
    kept: dict[int, str] = {}
    for line in lines:
        cells = line.split(",")
        is_whole = line.endswith("\n") and len(cells) == len(header.split(",")) and cells[0].isdecimal()
        if is_whole and int(cells[0]) <= until:
            kept.setdefault(int(cells[0]), line)
    return kept


# --- TensorBoard ---------------------------------------------------------------------------------------------------


@contextmanager
def event_writer(config: MonitorConfig, view: SegmentView) -> Iterator[Record]:
    """Write event files with one scalar per column of the CSV; training from iteration 0 removes earlier files."""
    # imported here: it takes seconds, and the package is optional
    from torch.utils.tensorboard import SummaryWriter

    if view.iteration == 0:
        for path in view.folder.glob(EVENT_FILES):
            path.unlink(missing_ok=True)
    # also at the first start: TensorBoard takes the first mark of a start in a folder for no restart
    with SummaryWriter(str(view.folder), purge_step=view.iteration + 1) as writer:

        def write(row: Row) -> None:
            for name, value in metrics_of(row, config.model.group_labels).items():
                if name != "iteration" and value is not None:
                    writer.add_scalar(name, value, row["iteration"])
            writer.flush()  # a killed process loses nothing that its partial state has

        yield write


# --- terminal ------------------------------------------------------------------------------------------------------


def terminal_line(row: Row, view: SegmentView) -> str:
    segment, run = (tqdm.format_interval(row[name]) for name in TIME_LEFT)
    left = f"{segment} left in this segment, " if row["iteration"] < view.until else ""
    return f"{view.run}: iteration {row['iteration']} of {view.until}, loss {row['loss']:.3f}, {left}{run} in the run\n"


def print_on_terminal(line: str) -> None:
    """Write to standard output, unless it is the same file as standard error, which has the meter's lines.

    Training goes on where this is not possible: the terminal was closed or is stopped, or nobody reads the pipe.
    """
    try:
        _, writable, _ = select.select([], [STDOUT], [], 0)
        if writable and not os.path.sameopenfile(STDOUT, STDERR):
            os.write(STDOUT, line.encode())
    except OSError:
        pass
