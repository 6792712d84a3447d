"""The figure of path types: what it shows of tables with known content."""

import pandas as pd
import pytest

from tests.figures import ITERATIONS, legend_texts, quantile_table
from tests.studies.path_types.samples import draw, types_table
from twoscale.base import InputError
from twoscale.dynamics import path_types as criteria
from twoscale.studies.path_types import figure as path_types
from twoscale.studies.path_types.compare import sentence


def test_every_path_type_but_converging_has_a_line():
    assert {path_type for path_type, _, _ in path_types.OTHERS.values()} == set(criteria.PATH_TYPES) - {"converging"}


def test_shares_of_other_types_add_up_orbits_by_period_without_types_that_do_not_occur():
    shares = path_types.other_shares(types_table())
    assert list(shares.columns) == ["orbiting, period 2", "orbiting, longer period", "undecided"]
    for _, row in shares.iterrows():
        assert list(row) == pytest.approx([0.3, 0.2, 0.1])
    drawn = [list(line.get_ydata()) for line in draw().axes[-1].get_lines()]
    assert drawn == [pytest.approx([share] * len(ITERATIONS)) for share in (0.3, 0.2, 0.1)]


def test_there_is_a_column_per_group_with_medians_and_the_share_that_converges():
    figure = draw()
    titles = ["(i)  group 4, at least 40 % converge", "(ii)  group 5–6, at least 40 % converge"]
    assert [axes.get_title() for axes in figure.axes[:2]] == titles
    for axes in figure.axes[:4]:
        assert list(axes.get_lines()[0].get_ydata()) == [3.0] * len(ITERATIONS)
    assert [tick.get_text() for tick in figure.axes[-1].get_xticklabels()] == ["0", "50", "600"]
    assert figure.axes[-1].get_xlabel() == "iteration (0, then log scale)"


def test_there_is_no_panel_of_types_where_all_tokens_converge():
    types = types_table().query("path_type == 'converging'").assign(share=1.0)
    figure = draw(types)
    assert len(figure.axes) == 4  # two measures of two groups
    assert legend_texts(figure) == ["median", "9 of 10 tokens", "half of the tokens"]
    assert [axes.get_title() for axes in figure.axes[:2]] == [
        "(i)  group 4, all converge",
        "(ii)  group 5–6, all converge",
    ]


def test_a_model_without_groups_is_refused_in_one_sentence():
    with pytest.raises(InputError, match="expected at least one"):
        draw(types_table(()), quantile_table(path_types.ROWS, ()))


def test_one_checkpoint_has_a_visible_band_and_one_group_a_legend_within_the_page():
    types, metrics = types_table(("4",)), quantile_table(path_types.ROWS, ("4",))
    only = [table[table["iteration"] == 600] for table in (types, metrics)]
    figure = draw(*only)
    bars = [segment for lines in figure.axes[0].collections for segment in lines.get_segments()]
    assert [bar[:, 1].tolist() for bar in bars] == [[1.0, 5.0], [2.0, 4.0]]
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= legend.x0
    assert legend.x1 <= figure.bbox.x1


def test_the_report_says_which_types_the_last_checkpoint_has():
    types = {"group": ["2", "2-3", "2-3"], "path_type": ["sliding", "orbiting", "converging"], "share": [1, 0.25, 0.75]}
    found = sentence(pd.DataFrame({"run": "a", "iteration": [0, 20, 20]} | types))
    assert found == "At the last checkpoint, group 2–3: 25.0 % orbiting, 75.0 % converging."
