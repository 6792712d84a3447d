"""The figure of the variants: what it shows of tables with known content."""

import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from twoscale.errors import InputError
from twoscale.figures import style
from twoscale.studies.variants import figure as variants

ITERATIONS, LOOPS = (0, 400), 6
RUNS = (
    "variants/post_residual-random-noise",
    "variants/post_residual-random-input",
    "variants/branch-random-noise",
)


def draw(groups=("4", "5-6"), boundaries=("4->5-6",)):
    statistics = {"q05": 1.0, "q95": 9.0, "count": 10, "nulls": 0}
    loops = [
        {"run": run, "iteration": iteration, "group": group, "k": k, "measure": measure}
        | statistics
        | {"mean": iteration + place + k}
        for place, run in enumerate(RUNS)
        for iteration in ITERATIONS
        for group in groups
        for k in range(LOOPS)
        for measure in variants.MEASURES
    ]
    drift = [
        {"run": run, "iteration": iteration, "boundary": boundary, "reference_state": state, "measure": "dlr"}
        | statistics
        | {"mean": mean}
        for run in RUNS
        for iteration in ITERATIONS
        for boundary in boundaries
        for state, mean in (("first_state", 3.0), ("final", 5.0))
    ]
    training = [
        {"run": run, "iteration": n, "held_out_loss": 7.0 - n if n % 2 else None} for run in RUNS for n in range(1, 6)
    ]
    keys, values = ["run", "iteration"], ["measure", "mean", "q05", "q95"]
    return variants.draw(
        pd.DataFrame(loops, columns=[*keys, "group", "k", *values, "count", "nulls"]),
        pd.DataFrame(drift, columns=[*keys, "boundary", "reference_state", *values]),
        pd.DataFrame(training),
        reference_state="first_state",
        context=style.FigureContext("demo", "python_docs", LOOPS),
    )


def test_the_last_checkpoint_of_every_variant_has_a_line_in_every_panel():
    figure = draw()
    for axes in figure.axes[:4]:
        lines = [list(line.get_ydata()) for line in axes.get_lines()]
        assert lines == [[400 + place + k for k in range(LOOPS)] for place in range(len(RUNS))]
    loss = figure.axes[5].get_lines()
    assert [list(line.get_xdata()) for line in loss] == [[1, 3, 5]] * len(RUNS)


def test_the_drift_is_that_of_the_reference_state():
    marks = [line for line in draw().axes[4].get_lines() if line.get_marker() != "None"]
    assert [list(line.get_ydata()) for line in marks] == [[3.0]] * len(RUNS)


def test_sandwich_and_adapter_share_a_colour_and_the_initial_state_a_dash():
    looks = list(variants.styles(RUNS).values())
    assert to_rgb(looks[0]["color"]) == to_rgb(looks[1]["color"]) != to_rgb(looks[2]["color"])
    assert looks[0]["linestyle"] == looks[2]["linestyle"] != looks[1]["linestyle"]


def test_the_range_of_the_paper_is_visible():
    low, high = draw().axes[0].get_ylim()
    assert low <= style.REPORTED_COSINE[0] < style.REPORTED_COSINE[1] <= high


def test_one_group_has_no_boundary_and_no_group_no_figure():
    assert len(draw(groups=("3-6",), boundaries=()).axes) == 3
    with pytest.raises(InputError, match="expected at least one"):
        draw(groups=(), boundaries=())


def test_the_same_tables_give_the_same_bytes(tmp_path):
    for name in ("one.pdf", "two.pdf"):
        style.save(draw(), tmp_path / name)
    assert (tmp_path / "one.pdf").read_bytes() == (tmp_path / "two.pdf").read_bytes()
