"""The figures of whole paths: what they show of tables with known content."""

import pandas as pd
import pytest

from twoscale.dynamics import path_types as criteria
from twoscale.errors import InputError
from twoscale.figures import style
from twoscale.studies.path_independence import figure as path_independence
from twoscale.studies.path_types import figure as path_types

RUN = {"context": style.FigureContext("demo", "python_docs", 6)}
ITERATIONS = (0, 50, 600)
QUANTILES = {"q05": 1.0, "q25": 2.0, "q50": 3.0, "q75": 4.0, "q95": 5.0, "mean": 0.75, "count": 10}


def types_table(groups=("4", "5-6")):
    shares = [("converging", 0, 0.4), ("orbiting", 2, 0.3), ("orbiting", 5, 0.1), ("orbiting", 3, 0.1)]
    rows = [
        (iteration, group, *part)
        for iteration in ITERATIONS
        for group in groups
        for part in [*shares, ("undecided", 0, 0.1)]
    ]
    return pd.DataFrame(rows, columns=["iteration", "group", "path_type", "period", "share"])


def metrics_table(measures, groups=("4", "5-6")):
    return pd.DataFrame(
        [
            {"iteration": iteration, "group": group, "measure": measure} | QUANTILES
            for iteration in ITERATIONS
            for group in groups
            for measure in measures
        ],
        columns=["iteration", "group", "measure", *QUANTILES],
    )


def draw_types():
    return path_types.draw(types_table(), metrics_table(path_types.ROWS), **RUN)


def draw_independence(**changes):
    table = metrics_table(path_independence.LABELS, ("4", "5-6", "all"))
    return path_independence.draw(table.assign(**changes), dtype="float64", **RUN)


def test_every_path_type_but_converging_has_a_line():
    assert {path_type for path_type, _, _ in path_types.OTHERS.values()} == set(criteria.PATH_TYPES) - {"converging"}


def test_shares_of_other_types_add_up_orbits_by_period_without_types_that_do_not_occur():
    shares = path_types.other_shares(types_table())
    assert list(shares.columns) == ["orbiting, period 2", "orbiting, longer period", "undecided"]
    for _, row in shares.iterrows():
        assert list(row) == pytest.approx([0.3, 0.2, 0.1])
    drawn = [list(line.get_ydata()) for line in draw_types().axes[-1].get_lines()]
    assert drawn == [pytest.approx([share] * len(ITERATIONS)) for share in (0.3, 0.2, 0.1)]


def test_there_is_a_column_per_group_with_medians_and_the_share_that_converges():
    figure = draw_types()
    titles = ["(i)  group 4, at least 40 % converge", "(ii)  group 5–6, at least 40 % converge"]
    assert [axes.get_title() for axes in figure.axes[:2]] == titles
    for axes in figure.axes[:4]:
        assert list(axes.get_lines()[0].get_ydata()) == [3.0] * len(ITERATIONS)
    assert [tick.get_text() for tick in figure.axes[-1].get_xticklabels()] == ["0", "50", "600"]
    assert figure.axes[-1].get_xlabel() == "iteration (log scale)"


def test_there_is_no_panel_of_types_where_all_tokens_converge():
    types = types_table().query("path_type == 'converging'").assign(share=1.0)
    figure = path_types.draw(types, metrics_table(path_types.ROWS), **RUN)
    assert len(figure.axes) == 4  # two measures of two groups
    assert not figure.legends
    assert [axes.get_title() for axes in figure.axes[:2]] == [
        "(i)  group 4, all converge",
        "(ii)  group 5–6, all converge",
    ]


def test_path_independence_has_a_line_per_varied_group_and_the_share_of_changed_predictions():
    figure = draw_independence()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["group 4", "group 5–6", "all groups"]
    distance, divergence, changed = figure.axes
    assert distance.get_yscale() == divergence.get_yscale() == "log"
    assert list(distance.get_lines()[0].get_ydata()) == [3.0] * len(ITERATIONS)
    assert list(changed.get_lines()[0].get_ydata()) == [0.25] * len(ITERATIONS)


def test_rounding_errors_are_drawn_at_the_edge_of_a_marked_range():
    floor = 16 * 2.0**-52
    figure = draw_independence(q05=0.0, q50=1e-16)
    distance = figure.axes[0]
    assert list(distance.get_lines()[0].get_ydata()) == [floor] * len(ITERATIONS)
    low, high = distance.patches[0].get_y(), distance.patches[0].get_y() + distance.patches[0].get_height()
    assert low < high == pytest.approx(floor)
    assert distance.get_ylim()[0] < floor
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert entries[-1] == "rounding errors, below 4e-15"
    assert not draw_independence().axes[0].patches


@pytest.mark.parametrize("draw", [draw_types, draw_independence])
def test_the_same_tables_give_the_same_bytes_and_name_their_run(draw, tmp_path):
    for name in ("one.pdf", "two.pdf"):
        style.save(draw(), tmp_path / name)
    assert (tmp_path / "one.pdf").read_bytes() == (tmp_path / "two.pdf").read_bytes()
    assert draw().get_supxlabel() == "run demo · text python_docs · K = 6 loop steps"


def test_a_model_without_groups_is_refused_in_one_sentence():
    with pytest.raises(InputError, match="expected at least one"):
        path_types.draw(types_table(()), metrics_table(path_types.ROWS, ()), **RUN)
    with pytest.raises(InputError, match="expected at least one"):
        path_independence.draw(metrics_table(path_independence.LABELS, ()), dtype="float64", **RUN)


def test_one_checkpoint_has_a_visible_band_and_one_group_a_legend_within_the_page():
    types, metrics = types_table(("4",)), metrics_table(path_types.ROWS, ("4",))
    only = [table[table["iteration"] == 600] for table in (types, metrics)]
    figure = path_types.draw(*only, **RUN)
    bars = [segment for lines in figure.axes[0].collections for segment in lines.get_segments()]
    assert [bar[:, 1].tolist() for bar in bars] == [[1.0, 5.0], [2.0, 4.0]]
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= legend.x0
    assert legend.x1 <= figure.bbox.x1
