"""The readings study: the runs that it makes of a configuration, and its figure."""

from pathlib import Path

import jinja2
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from twoscale import config
from twoscale.figures import style
from twoscale.errors import InputError
from twoscale.figures import variants
from twoscale.figures.fig5 import REPORTED

ROOT = Path(__file__).parents[2]
STEPS, BUDGET = (0, 400), 6
STUDY = {
    "readings/post_residual-random-noise": ["post_residual", "random", "noise"],
    "readings/post_residual-random-input": ["post_residual", "random", "input"],
    "readings/branch-random-noise": ["branch", "random", "noise"],
}


# --- runs ------------------------------------------------------------------------------------------------------


def test_every_combination_is_a_run_named_after_it():
    runs = config.variants({"preset": "demo"})
    assert len(runs) == 8
    chosen = runs["readings/branch-blend-input"].model
    assert (chosen.sandwich, chosen.adapter_init, chosen.state_init) == ("branch", "blend", "input")
    combinations = {(run.model.sandwich, run.model.adapter_init, run.model.state_init) for run in runs.values()}
    assert len(combinations) == 8


def test_readings_differ_from_the_chosen_run_in_their_reading_and_the_overrides_alone():
    config = {"preset": "tiny", "seed": 5, "readings": {"overrides": {"train": {"batch": 2}}}}
    (chosen,) = config.runs(config).values()
    for run in config.variants(config).values():
        assert (run.seed, run.train.batch_size, run.train.iterations) == (5, 2, 10)
        assert (run.data, run.tokens) == (chosen.data, chosen.tokens)
        assert run.model.hidden_size == chosen.model.hidden_size


def test_a_wrong_override_names_the_run_and_the_key():
    config = {"preset": "tiny", "readings": {"overrides": {"train": {"lr": 1}}}}
    with pytest.raises(InputError, match=r"readings/post_residual-random-noise .*train: unknown key lr"):
        config.variants(config)


@pytest.mark.parametrize("value", [[], ["none"], ["branch", "branch"]])
def test_a_reading_that_does_not_exist_is_refused(value):
    with pytest.raises(InputError, match=r"config key readings\.sandwich"):
        config.variants({"preset": "tiny", "readings": {"sandwich": value}})


# --- figure ----------------------------------------------------------------------------------------------------


def draw(groups=("4", "5-6"), boundaries=("4->5-6",)):
    statistics = {"q05": 1.0, "q95": 9.0, "count": 10, "nulls": 0}
    loops = [
        {"run": run, "iteration": step, "group": group, "k": k, "measure": measure, "mean": step + place + k} | statistics
        for place, run in enumerate(STUDY)
        for step in STEPS
        for group in groups
        for k in range(BUDGET)
        for measure in variants.MEASURES
    ]
    drift = [
        {"run": run, "iteration": step, "boundary": boundary, "reference_state": name, "measure": "dlr", "mean": mean} | statistics
        for run in STUDY
        for step in STEPS
        for boundary in boundaries
        for name, mean in (("first_state", 3.0), ("final", 5.0))
    ]
    training = [
        {"run": run, "iteration": step, "held_out_loss": 7.0 - step if step % 2 else None}
        for run in STUDY
        for step in range(1, 6)
    ]
    columns = ["run", "iteration", "group", "k", "measure", "mean", "count", "nulls"]
    of_loops = pd.DataFrame(loops, columns=[*columns, "q05", "q95"])
    of_drift = pd.DataFrame(drift, columns=["run", "iteration", "boundary", "reference_state", "measure", "mean", "q05", "q95"])
    return variants.draw(
        of_loops, of_drift, pd.DataFrame(training), STUDY, "first_state", BUDGET, "demo", "python_docs"
    )


def test_the_last_checkpoint_of_every_reading_has_a_line_in_every_panel():
    figure = draw()
    for axes in figure.axes[:4]:
        lines = [list(line.get_ydata()) for line in axes.get_lines()]
        assert lines == [[400 + place + k for k in range(BUDGET)] for place in range(len(STUDY))]
    loss = figure.axes[5].get_lines()
    assert [list(line.get_xdata()) for line in loss] == [[1, 3, 5]] * len(STUDY)


def test_the_drift_is_that_of_the_chosen_reading_of_equation_2():
    marks = [line for line in draw().axes[4].get_lines() if line.get_marker() != "None"]
    assert [list(line.get_ydata()) for line in marks] == [[3.0]] * len(STUDY)


def test_sandwich_and_adapter_share_a_colour_and_the_initial_state_a_dash():
    looks = list(variants.styles(STUDY).values())
    assert to_rgb(looks[0]["color"]) == to_rgb(looks[1]["color"]) != to_rgb(looks[2]["color"])
    assert looks[0]["linestyle"] == looks[2]["linestyle"] != looks[1]["linestyle"]


def test_the_range_of_the_paper_is_visible():
    low, high = draw().axes[0].get_ylim()
    assert low <= REPORTED[0] < REPORTED[1] <= high


def test_one_group_has_no_boundary_and_no_group_no_figure():
    assert len(draw(groups=("3-6",), boundaries=()).axes) == 3
    with pytest.raises(InputError, match="expected at least one"):
        draw(groups=(), boundaries=())


def test_the_same_tables_give_the_same_bytes(tmp_path):
    for name in ("one.pdf", "two.pdf"):
        style.save(draw(), tmp_path / name)
    assert (tmp_path / "one.pdf").read_bytes() == (tmp_path / "two.pdf").read_bytes()


def test_the_caption_quotes_every_value():
    keys = [
        *("run", "text", "runs", "iterations", "training_tokens", "layers", "width", "held_out_loops"),
        *("budget", "groups", "boundaries", "reference_state", "tokens", "dtype"),
    ]
    values = {key: f"<{key}>" for key in keys}
    template = jinja2.Template(
        (ROOT / "workflow" / "report" / "readings.rst").read_text(), undefined=jinja2.StrictUndefined
    )
    written = template.render(snakemake={"params": {"caption": values}})
    assert all(value in written for value in values.values())
