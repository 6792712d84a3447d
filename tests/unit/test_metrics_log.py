"""metrics_log: what can be seen of training while it runs, with kills and resumes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.segment import TIMEOUT, Run
from tests.small import job_config, model_config, train_config
from twoscale import tables
from twoscale.config import ConfigSlice
from twoscale.model import checkpoints
from twoscale.training.metrics_log import METRICS, SegmentView, monitoring

GROUPS = ("2", "3")


FIRST, SECOND = 100, 104
RUNTIME = {
    "iterations": SECOND,
    "checkpoint_every": SECOND,
    "log_every": 2,
    "save_seconds": 0.1,
}


def last_line(path: Path) -> int:
    """Iteration of the last line of a metrics file; 0 if there is none."""
    lines = path.read_text().splitlines() if path.exists() else []
    return int(lines[-1].split(",")[0]) if len(lines) > 1 else 0


def kill_beyond_its_partial_state(run: Run) -> int:
    """Start the first segment and kill it when it shows more than its partial state has; iteration of that state."""
    partial, end = run.partial(FIRST), time.monotonic() + TIMEOUT
    process = subprocess.Popen(run.command(0, FIRST, **RUNTIME), stderr=subprocess.DEVNULL)
    while True:
        assert process.poll() is None, "the segment ended before it could be killed"
        assert time.monotonic() < end
        if partial.exists():
            process.send_signal(signal.SIGSTOP)
            saved = checkpoints.read_header(partial).iteration
            if last_line(run.folder / METRICS) > saved + 2:
                process.kill()
                process.wait()
                return saved
            process.send_signal(signal.SIGCONT)
        time.sleep(0.01)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory) -> Run:
    """Two segments, the first of which was killed while it wrote a line."""
    run = Run(tmp_path_factory.mktemp("resumed"))
    (run.folder / METRICS).write_text("of an earlier training\n1,2,3\n")
    assert 0 < kill_beyond_its_partial_state(run) < FIRST
    with (run.folder / METRICS).open("a") as file:
        file.write("99,63")
    return run.succeed(0, FIRST, **RUNTIME).succeed(FIRST, SECOND, **RUNTIME)


@pytest.fixture(scope="module")
def table(resumed) -> pd.DataFrame:
    """The rows of both segments that are shown, with the loops of each group."""
    rows = pd.concat([resumed.log(FIRST), resumed.log(SECOND)]).set_index("iteration")
    loops = pd.concat([resumed.loops(FIRST), resumed.loops(SECOND)]).pivot(
        index="iteration", columns="group", values="loops"
    )
    rows = rows.join(loops.add_prefix("loops_"))
    return rows[(rows.index % 2 == 0) | rows["held_out_loss"].notna()]


def test_the_csv_has_the_numbers_of_the_tables(resumed, table):
    """Speeds too: a line before the kill shows the same measurement that the partial state keeps."""
    lines = resumed.metrics().set_index("iteration")
    for name in [*tables.columns("training"), *(f"loops_{group}" for group in GROUPS)]:
        if name != "iteration":
            expected = table[name].astype(float).tolist()
            assert lines[name].astype(float).tolist() == pytest.approx(expected, rel=1e-5, nan_ok=True), name


def config(**changes: Any) -> ConfigSlice:
    return job_config(model=model_config(), train=train_config(log_every=2, **changes))


def row(iteration: int, held_out_loss: float | None = None) -> dict[str, Any]:
    numbers = dict.fromkeys(tables.columns("training"), 0.5)
    return numbers | {"iteration": iteration, "held_out_loss": held_out_loss, "loops": [3, 4]}


def show(folder: Path, rows: list[dict[str, Any]], iteration: int = 0, log: tuple = (), **changes: Any) -> None:
    """The file after a process that resumes at `iteration`, with `log` before it, and trains `rows`."""
    with monitoring(config(**changes), SegmentView("small", 20, iteration, log, folder)) as record:
        for each in rows:
            record(each)


def iterations_in(folder: Path) -> list[int]:
    return pd.read_csv(folder / METRICS)["iteration"].tolist()


@pytest.mark.parametrize("resumed_at", range(9))
def test_a_file_cut_at_any_byte_becomes_whole_again(tmp_path, resumed_at):
    """From every cut and resume: each line once, in order, none beyond, and those of the segment complete."""
    everything = [row(iteration) for iteration in range(1, 9)]
    show(tmp_path, everything)
    whole = (tmp_path / METRICS).read_bytes()
    for cut in range(0, len(whole), 7):
        (tmp_path / METRICS).write_bytes(whole[:cut])
        show(tmp_path, [], resumed_at, tuple(everything[4:resumed_at]))
        found = iterations_in(tmp_path)
        earlier = [iteration for iteration in (2, 4) if iteration in found and iteration <= resumed_at]
        assert found == earlier + [iteration for iteration in (6, 8) if iteration <= max(resumed_at, 4)]


def test_a_process_that_was_left_behind_does_not_write_into_the_file_of_its_successor(tmp_path):
    with monitoring(config(), SegmentView("small", 20, 0, (), tmp_path)) as record:
        record(row(2))
        record(row(4))
        show(tmp_path, [row(4)], iteration=2, log=(row(1), row(2)))
        record(row(6))
    assert iterations_in(tmp_path) == [2, 4]


def test_a_line_is_printed_and_a_reader_that_is_gone_does_not_stop_training():
    code = "from twoscale.training.metrics_log import print_on_terminal; print_on_terminal('line\\n')"
    reading, writing = os.pipe()
    os.close(reading)
    for stdout, printed in ((subprocess.PIPE, "line\n"), (writing, None)):
        done = subprocess.run([sys.executable, "-c", code], stdout=stdout, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")
    os.close(writing)
