"""The benchmark of batched decoding and its figure."""

import json

import pandas as pd
import pytest

from tests.configs import assert_refused
from tests.figures import legend_texts, one_sentence
from tests.small import checkpoint, held_out, job_config, job_row, of, project
from tests.studies.throughput.samples import draw, throughput_table
from tests.unit.test_engine import CONTEXT_LENGTH, small_model, text
from twoscale import tables
from twoscale.base import InputError
from twoscale.config import Config, checked, preset
from twoscale.studies.throughput.figure import summarise_throughput
from twoscale.studies.throughput.measure import measure_throughput
from twoscale.studies.throughput.study import JOBS

SEQUENCES = (1, 3)


def config(**changes):
    exits = {"max_loops": 7, "criteria": {"fixed": {"thresholds": [7]}, "acceleration": {"thresholds": [3.0]}}}
    section = {"sequences": SEQUENCES, "prompt_tokens": 3, "tokens": 4, "repeats": 2, "cpu_threads": 1} | changes
    whole = Config(exits=exits, throughput=section)
    sections = {"model": small_model().config, "exits": whole.exits, "throughput": whole.throughput}
    return job_config(**sections, lengths=whole.throughput.lengths(whole))


@pytest.fixture(scope="module")
def measured():
    rows = measure_throughput(checkpoint(small_model()), held_out(text(3, CONTEXT_LENGTH)), config())
    return [pd.DataFrame(part) for part in rows]


def test_every_criterion_is_timed_with_every_number_of_sequences_in_every_repeat(measured, tmp_path):
    table, loops = measured
    points = table.groupby("criterion")["sequences"].agg(sorted).to_dict()
    assert points == dict.fromkeys(("fixed", "acceleration"), sorted(2 * SEQUENCES))
    for name, frame in (("throughput", table), ("throughput_loops", loops)):
        tables.write(name, frame.assign(run="trial")[list(tables.columns(name))], tmp_path / f"{name}.parquet")
    assert (table["tokens_per_second"] > 0).all()
    assert (table["latency_high_ms"] >= table["latency_ms"]).all()


def test_only_tokens_behind_the_prompts_are_counted(measured):
    """With one sequence that is all of them but the first, which follows from the prompt."""
    table, _ = measured
    assert set(table.loc[table["sequences"] == 1, "tokens"]) == {3}
    assert table.loc[table["sequences"] == 3, "tokens"].between(3 * 2 + 1, 3 * 3).all()


def test_loops_of_the_baselines(measured):
    _, loops = measured
    fixed = loops[loops["criterion"] == "fixed"]
    assert set(fixed["evaluations"]) == {7.0}
    exits = loops[loops["criterion"] == "acceleration"]["evaluations"]
    assert exits.max() < 7  # evaluations are those of the exits, not of the waiting
    assert set(loops["group"]) == set(small_model().config.group_labels)


def test_the_summary_has_medians_and_the_range_of_the_repeats():
    summary = summarise_throughput(throughput_table().sample(frac=1, random_state=0))
    point = summary[(summary["criterion"] == "acceleration") & (summary["sequences"] == 4)].iloc[0]
    assert (point["tokens_per_second"], point["low"], point["high"]) == (41.0, 40.0, 42.0)
    assert list(summary["sequences"]) == [1] * 2 + [4] * 2 + [16] * 2


def test_the_figure_has_a_line_per_criterion():
    figure = draw()
    speed, latency = figure.axes
    assert [list(container.lines[0].get_ydata()) for container in speed.containers] == 2 * [[11.0, 41.0, 161.0]]
    assert [list(line.get_ydata()) for line in latency.get_lines()] == 2 * [[51.0, 54.0, 66.0]]
    assert legend_texts(figure) == ["30 loops for all", r"acceleration, $\tau$ = 0.01"]


def test_a_table_without_rows_is_one_sentence():
    with pytest.raises(InputError, match="table throughput: found no rows") as error:
        draw(sequences=())
    assert one_sentence(error)


def test_the_exits_of_the_benchmark_have_all_loops_as_reference_and_the_head_as_readout():
    values = preset("tiny")
    values["exits"] |= {"readout": "remaining_layers", "kv_slots": 2}
    exits = checked(values).exit_grids["throughput"]
    assert exits.criteria["fixed"].thresholds == (6,)
    assert set(exits.criteria) == {"fixed", "step_norm", "kl", "acceleration"}
    assert (exits.readout, exits.kv_slots) == ("head", None)


def test_a_text_of_the_benchmark_fits_into_a_short_context():
    values = preset("tiny")
    values["throughput"] = {"prompt_tokens": 100, "tokens": 100}
    config = checked(values)
    assert config.throughput.lengths(config) == (16, 16)


def test_the_slice_of_the_benchmark_has_the_lengths_of_its_texts():
    values = json.loads(job_row(JOBS, "benchmark_throughput").config(project())(of()))
    assert values["lengths"] == list(checked(preset("tiny")).throughput.lengths(checked(preset("tiny"))))


def test_more_sequences_than_are_held_out_are_refused():
    assert_refused("data.held_out_tokens", "throughput.sequences", throughput={"sequences": [1, 5000]})
