"""Training while it runs: the file metrics.csv, and a line a minute on the terminal.

Both show rows of the log of a segment, whose numbers are already on the host.
"""

import os
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from twoscale import tables
from twoscale.base import replacing
from twoscale.config import TrainConfig
from twoscale.training.state import SegmentConfig, TrainingState

METRICS = "metrics.csv"
TIME_LEFT = ("segment_left_s", "run_left_s")
STDOUT, STDERR = 1, 2

Row = Mapping[str, Any]
Record = Callable[[Row], object]


@contextmanager
def monitoring(
    config: SegmentConfig,
    run: str,
    until: int,
    state: TrainingState,
    folder: Path,
    visible: bool = True,
) -> Iterator[Record]:
    """Yield a function that shows a row of the log; call it once for each iteration, after its last
    measurement.

    The segment of the run ends at iteration `until` and continues from `state`; `folder` is that of
    metrics.csv. The file gets a row every train.log_every iterations and where the held-out loss
    was measured. The terminal gets a line every train.print_seconds and at the end of the segment,
    with the time left to the last iteration of the run. `visible` is False for all but one of
    several processes.
    """
    if not visible:
        yield lambda row: None
        return
    train, groups, printed = config.train, config.model.group_labels, time.monotonic()
    started, count = printed, 0

    def record(row: Row) -> None:
        nonlocal started, count, printed
        now, count = time.monotonic(), count + 1
        # mean time of the iterations of this process; the first one, which compiles, counts only
        # while it is alone
        mean = (now - started) / max(1, count - 1)
        started = now if count == 1 else started
        left = (mean * (until - row["iteration"]), mean * (train.iterations - row["iteration"]))
        row = {**row, **dict(zip(TIME_LEFT, left, strict=True))}
        if _is_in_file(row, train):
            file.write(_line(row, groups))
        if now - printed >= train.print_seconds or row["iteration"] == until:
            printed = now
            at = (
                f"{run}: iteration {row['iteration']} of {train.iterations}, loss {row['loss']:.3f}"
            )
            print_on_terminal(f"{at}, {tqdm.format_interval(left[-1])} left\n")

    path = folder / METRICS
    _restore(path, state, train, groups)
    with path.open("a", buffering=1) as file:  # line by line
        yield record


def _is_in_file(row: Row, train: TrainConfig) -> bool:
    return row["iteration"] % train.log_every == 0 or row["held_out_loss"] is not None


def _restore(path: Path, state: TrainingState, train: TrainConfig, groups: Sequence[str]) -> None:
    """Bring metrics.csv to the lines of the iterations before this process.

    If these lines change, the file is replaced rather than cut, so that a process of a killed
    Snakemake that still writes does not write into it. Otherwise it remains the same file, which
    `tail -f` can follow.
    """
    header = (
        ",".join([*tables.columns("training"), *TIME_LEFT, *(f"loops_{group}" for group in groups)])
        + "\n"
    )
    found = path.read_text(errors="replace") if path.exists() else ""
    first, *lines = found.splitlines(keepends=True) or [""]
    whole = [
        line
        for line in lines
        if first == header and line.endswith("\n") and line.count(",") == header.count(",")
    ]
    kept = {
        iteration: line
        for line in whole
        if (iteration := int(line.partition(",")[0])) <= state.iteration
    }
    rows = {
        row["iteration"]: _line(row, groups) for row in state.log if _is_in_file(row, train)
    }  # also what it lost
    wanted = header + "".join(line for _, line in sorted((rows | kept).items()))
    if found != wanted:
        with replacing(path) as temporary:
            temporary.write_text(wanted)


def _line(row: Row, groups: Sequence[str]) -> str:
    cells = [row.get(name) for name in (*tables.columns("training"), *TIME_LEFT)] + list(
        row["loops"]
    )
    shown = (
        "" if cell is None else f"{cell:.6g}" if isinstance(cell, float) else str(cell)
        for cell in cells
    )
    return ",".join(shown) + "\n"


def print_on_terminal(line: str) -> None:
    """Write to standard output, unless it is the same file as standard error, which has the meter's
    lines.

    Training goes on where this is not possible: the terminal was closed or is stopped, or nobody
    reads the pipe.
    """
    try:
        _, writable, _ = select.select([], [STDOUT], [], 0)
        if writable and not os.path.sameopenfile(STDOUT, STDERR):
            os.write(STDOUT, line.encode())
    except OSError:
        pass
