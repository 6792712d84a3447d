"""metrics_log: what can be seen of training while it runs, with kills and resumes."""

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.small import job_config, model_config, train_config
from twoscale import tables
from twoscale.config import ConfigSlice
from twoscale.training.metrics_log import METRICS, monitoring
from twoscale.training.state import Segment, TrainingState

SEGMENT = Segment(20, {}, "small")


def config(**changes: Any) -> ConfigSlice:
    return job_config(model=model_config(), train=train_config(log_every=2, **changes))


def row(iteration: int, held_out_loss: float | None = None) -> dict[str, Any]:
    numbers = dict.fromkeys(tables.columns("training"), 0.5)
    return numbers | {"iteration": iteration, "held_out_loss": held_out_loss, "loops": [3, 4]}


def state_after(iteration: int, log: tuple = ()) -> TrainingState:
    return TrainingState(None, None, iteration, 0, list(log))


def show(
    folder: Path, rows: list[dict[str, Any]], iteration: int = 0, log: tuple = (), **changes: Any
) -> None:
    """The file after a process that resumes at `iteration`, with `log` before it, and trains
    `rows`.
    """
    with monitoring(config(**changes), SEGMENT, state_after(iteration, log), folder) as record:
        for each in rows:
            record(each)


def iterations_in(folder: Path) -> list[int]:
    return pd.read_csv(folder / METRICS)["iteration"].tolist()


def test_every_second_iteration_and_a_held_out_loss_have_a_line_and_an_earlier_training_none(
    tmp_path,
):
    (tmp_path / METRICS).write_text("of an earlier training\n1,2,3\n")
    show(tmp_path, [row(1), row(2), row(3, held_out_loss=0.5), row(4)])
    assert iterations_in(tmp_path) == [2, 3, 4]


@pytest.mark.parametrize("resumed_at", range(9))
def test_a_file_cut_at_any_byte_keeps_its_whole_lines_up_to_the_start(tmp_path, resumed_at):
    everything = [row(iteration) for iteration in range(1, 9)]
    show(tmp_path, everything)
    whole = (tmp_path / METRICS).read_bytes()
    for cut in range(0, len(whole), 7):
        (tmp_path / METRICS).write_bytes(whole[:cut])
        show(tmp_path, [], resumed_at)
        kept = max(0, whole[:cut].count(b"\n") - 1)  # without the header
        earlier = [iteration for iteration in (2, 4, 6, 8)[:kept] if iteration <= resumed_at]
        show(tmp_path, everything[resumed_at:], resumed_at)
        later = [iteration for iteration in (2, 4, 6, 8) if iteration > resumed_at]
        assert iterations_in(tmp_path) == earlier + later


@pytest.mark.parametrize(
    "number",
    ["4.0", "# note", "\0\0\0", "", "-4", "4e0", "²", "9" * 5000],
    ids=["float", "note", "NUL", "empty", "negative", "power", "superscript", "long"],
)
def test_a_line_without_a_whole_number_does_not_keep_training_from_its_start(number, tmp_path):
    show(tmp_path, [row(iteration) for iteration in range(1, 9)])
    path = tmp_path / METRICS
    path.write_text(path.read_text().replace("\n4,", f"\n{number},"))
    show(tmp_path, [row(7), row(8)], 6)
    assert iterations_in(tmp_path) == [2, 6, 8]


def test_a_process_that_was_left_behind_does_not_write_into_the_file_of_its_successor(tmp_path):
    with monitoring(config(), SEGMENT, state_after(0), tmp_path) as record:
        record(row(2))
        record(row(4))
        show(tmp_path, [row(4)], iteration=2, log=(row(1), row(2)))
        record(row(6))
    assert iterations_in(tmp_path) == [2, 4]


def test_the_terminal_shows_how_far_the_run_is_not_the_segment(tmp_path, capfd):
    """The segment ends at iteration 20 of 40; each iteration takes a tenth of a second."""
    with monitoring(config(iterations=40), SEGMENT, state_after(18), tmp_path) as record:
        for iteration in (19, 20):
            time.sleep(0.1)
            record(row(iteration))
    printed = capfd.readouterr().out
    assert re.fullmatch(r"small: iteration 20 of 40, loss 0\.500, 00:0[2-9] left\n", printed)


def test_a_line_is_printed_and_a_reader_that_is_gone_does_not_stop_training():
    lines = (
        "import os; from twoscale.training.metrics_log import print_on_terminal;"
        " print_on_terminal('line\\n')",
        "reading, writing = os.pipe(); os.close(reading); os.dup2(writing, 1);"
        " print_on_terminal('lost\\n')",
    )
    done = subprocess.run(
        [sys.executable, "-c", "; ".join(lines)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "line\n", "")
