"""The figures of whole paths: what they show of tables with known content."""

import pandas as pd
import pytest

from twoscale.dynamics import path_types as criteria
from twoscale.errors import InputError
from twoscale.figures import path_independence, path_types, style

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
    return path_independence.draw(table.assign(**changes), **RUN)


def test_every_path_type_has_a_segment_of_the_bars():
    assert {path_type for path_type, _, _ in path_types.SEGMENTS.values()} == set(criteria.PATH_TYPES)


def test_bars_stack_the_shares_of_a_checkpoint_to_one_with_orbits_by_period():
    axes = draw_types().axes[0]
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    assert heights == [pytest.approx([share] * len(ITERATIONS)) for share in (0.4, 0.3, 0.2, 0.0, 0.1)]
    tops = [bar.get_y() + bar.get_height() for bar in axes.containers[-1]]
    assert tops == pytest.approx([1.0] * len(ITERATIONS))


def test_there_is_a_column_per_group_with_medians_below_the_bars():
    figure = draw_types()
    assert [axes.get_title() for axes in figure.axes[:2]] == ["(i)  group 4", "(ii)  group 5–6"]
    for axes in figure.axes[2:]:
        assert list(axes.get_lines()[0].get_ydata()) == [3.0] * len(ITERATIONS)
    assert [tick.get_text() for tick in figure.axes[-1].get_xticklabels()] == ["0", "50", "600"]


def test_path_independence_has_a_line_per_varied_group_and_the_share_of_changed_predictions():
    figure = draw_independence()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["group 4", "group 5–6", "all groups"]
    distance, divergence, changed = figure.axes
    assert distance.get_yscale() == divergence.get_yscale() == "log"
    assert list(distance.get_lines()[0].get_ydata()) == [3.0] * len(ITERATIONS)
    assert list(changed.get_lines()[0].get_ydata()) == [0.25] * len(ITERATIONS)


def test_values_of_zero_are_drawn_at_the_lowest_value_of_the_logarithmic_axes():
    distance = draw_independence(q05=0.0, q50=0.0).axes[0]
    assert list(distance.get_lines()[0].get_ydata()) == [path_independence.LOWEST] * len(ITERATIONS)


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
        path_independence.draw(metrics_table(path_independence.LABELS, ()), **RUN)


def test_one_checkpoint_has_a_visible_band_and_one_group_a_legend_within_the_page():
    types, metrics = types_table(("4",)), metrics_table(path_types.ROWS, ("4",))
    only = [table[table["iteration"] == 600] for table in (types, metrics)]
    figure = path_types.draw(*only, **RUN)
    bars = [segment for lines in figure.axes[1].collections for segment in lines.get_segments()]
    assert [bar[:, 1].tolist() for bar in bars] == [[1.0, 5.0], [2.0, 4.0]]
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= legend.x0
    assert legend.x1 <= figure.bbox.x1
