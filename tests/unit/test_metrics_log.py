"""metrics_log: what can be seen of training while it runs, with kills and resumes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.segment import Run
from tests.small import job_config, model_config, train_config
from twoscale import tables
from twoscale.config import ConfigSlice
from twoscale.training.metrics_log import METRICS, monitoring
from twoscale.training.state import TrainingState

GROUPS = ("2", "3")


def test_the_csv_has_the_numbers_of_the_tables(tmp_path):
    """Of two segments, every second iteration and those with a held-out loss; lines of an earlier training are gone."""
    run, options = Run(tmp_path / "run", held_out_every=3), {"iterations": 7, "checkpoint_every": 7, "log_every": 2}
    (run.folder / METRICS).write_text("of an earlier training\n1,2,3\n")
    run.succeed(0, 4, **options).succeed(4, 7, **options)
    rows = pd.concat([run.log(4), run.log(7)]).set_index("iteration")
    loops = pd.concat([run.loops(4), run.loops(7)]).pivot(index="iteration", columns="group", values="loops")
    expected = rows.join(loops.add_prefix("loops_")).loc[[2, 3, 4, 6, 7]].reset_index()
    for name in [*tables.columns("training"), *(f"loops_{group}" for group in GROUPS)]:
        found, wanted = (frame[name].astype(float).tolist() for frame in (run.metrics(), expected))
        assert found == pytest.approx(wanted, rel=1e-5, nan_ok=True), name


def config(**changes: Any) -> ConfigSlice:
    return job_config(model=model_config(), train=train_config(log_every=2, **changes))


def row(iteration: int, held_out_loss: float | None = None) -> dict[str, Any]:
    numbers = dict.fromkeys(tables.columns("training"), 0.5)
    return numbers | {"iteration": iteration, "held_out_loss": held_out_loss, "loops": [3, 4]}


def state_after(iteration: int, log: tuple = ()) -> TrainingState:
    return TrainingState(None, None, iteration, 0, list(log))


def show(folder: Path, rows: list[dict[str, Any]], iteration: int = 0, log: tuple = (), **changes: Any) -> None:
    """The file after a process that resumes at `iteration`, with `log` before it, and trains `rows`."""
    with monitoring(config(**changes), "small", 20, state_after(iteration, log), folder) as record:
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
    with monitoring(config(), "small", 20, state_after(0), tmp_path) as record:
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
