"""What shows training while it runs: metrics.csv, a progress bar, and a line a minute.

All show rows of the log of a segment, whose numbers are already on the host.
"""

import os
import re
import select
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from twoscale import tables
from twoscale.base import meter, replacing
from twoscale.training.state import Segment, SegmentConfig, TrainingState

METRICS = "metrics.csv"
_TIME_LEFT = ("segment_left_s", "run_left_s")
_STDOUT, _STDERR = 1, 2

Row = Mapping[str, Any]
Record = Callable[[Row], object]


@contextmanager
def monitoring(
    config: SegmentConfig,
    segment: Segment,
    state: TrainingState,
    folder: Path,
    visible: bool = True,
) -> Iterator[Record]:
    """Yield a function that shows a row of the log; call it once for each iteration, after its last
    measurement.

    The segment continues from `state`; `folder` is that of metrics.csv. The file gets a row every
    train.log_every iterations and where the held-out loss was measured. The terminal gets a line
    every train.print_seconds and at the end of the segment, with the time left to the last
    iteration of the run. `visible` is False for all but one of several processes.
    """
    if not visible:
        yield lambda row: None
        return
    train, until = config.train, segment.until
    loops = [f"loops_{group}" for group in config.model.group_labels]
    header = ",".join([*tables.columns("training"), *_TIME_LEFT, *loops]) + "\n"
    path = folder / METRICS
    _remove_later_lines(path, header, state.iteration)
    first = state.iteration - len(state.log)  # where the segment starts
    shown = len(state.log)  # by an attempt that was interrupted
    started = printed = time.monotonic()
    count = 0

    def record(row: Row) -> None:
        nonlocal started, count, printed
        now = time.monotonic()
        count += 1
        # mean time of the iterations of this process; the first one, which compiles, counts only
        # while it is alone
        mean = (now - started) / max(1, count - 1)
        if count == 1:
            started = now
        iteration = row["iteration"]
        segment_left = mean * (until - iteration)
        run_left = mean * (train.iterations - iteration)
        if iteration % train.log_every == 0 or row["held_out_loss"] is not None:
            numbers = [row[name] for name in tables.columns("training")]
            cells = map(_cell, [*numbers, segment_left, run_left, *row["loops"]])
            file.write(",".join(cells) + "\n")
        if now - printed >= train.print_seconds or iteration == until:
            printed = now
            at = f"iteration {iteration} of {train.iterations}, loss {row['loss']:.3f}"
            left_in_words = tqdm.format_interval(run_left)
            print_on_terminal(f"{segment.run}: {at}, {left_in_words} left\n")
        speed = f"loss {row['loss']:.3f}, {row['tokens_per_s']:.0f} tokens/s"
        bar.set_postfix_str(speed, refresh=False)
        bar.update(1)

    with (
        path.open("a", buffering=1) as file,  # line by line
        meter(f"train {first} -> {until}", until - first, "it", initial=shown) as bar,
    ):
        yield record


def _remove_later_lines(path: Path, header: str, iteration: int) -> None:
    """Bring metrics.csv to the lines up to `iteration`, from which training goes on.

    If lines are removed, the file is replaced rather than cut, so that a process of a killed
    Snakemake that still writes does not write into it. Otherwise it remains the same file, which
    `tail -f` can follow.
    """
    found = path.read_text(errors="replace") if path.exists() else ""
    first, *lines = found.splitlines(keepends=True) or [""]
    if first != header:
        lines = []  # of another training
    # a process that was killed may have left a line without its end
    whole = [line for line in lines if line.count(",") == header.count(",") and line.endswith("\n")]
    # an editor, or a crash of the machine, may have changed the number of an iteration
    numbered = [line for line in whole if re.match("[0-9]{1,18},", line)]
    kept = [line for line in numbered if int(line.partition(",")[0]) <= iteration]
    wanted = header + "".join(kept)
    if found != wanted:
        with replacing(path) as temporary:
            temporary.write_text(wanted)


def _cell(value: float | None) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


def print_on_terminal(line: str) -> None:
    """Write to standard output, unless it is the same file as standard error, which has the meter's
    lines.

    Training goes on where this is not possible: the terminal was closed or is stopped, or nobody
    reads the pipe.
    """
    try:
        _, writable, _ = select.select([], [_STDOUT], [], 0)
        if writable and not os.path.sameopenfile(_STDOUT, _STDERR):
            os.write(_STDOUT, line.encode())
    except OSError:
        pass
