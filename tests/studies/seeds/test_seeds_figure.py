"""The figure of the seeds, and the range over seeds in other figures: what they show of tables with known content."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from tests.unit import test_figures, test_variants_figure
from twoscale import tables
from twoscale.analysis.findings import FAILS, HOLDS, OPEN
from twoscale.errors import InputError
from twoscale.figures import fig2, fig3, fig5, style
from twoscale.studies.seeds import figure as seeds
from twoscale.studies.variants import figure as variants

VERDICTS = {1: (HOLDS, FAILS, OPEN), 6: (HOLDS, HOLDS, HOLDS), 7: (HOLDS, HOLDS, "per run")}
SPREADS = {1: (0.02, 0.2), 6: (1.0, 0.01)}  # claim -> error over documents, deviation between seeds


def seeds_table():
    blank = dict.fromkeys(tables.columns("seeds"), "") | {"deviation": np.nan, "document_error": np.nan}
    rows = [
        blank | {"claim": claim, "scope": "all", "seed": seed, "verdict": verdict}
        for claim, verdicts in VERDICTS.items()
        for seed, verdict in zip(("1337", "1338", "mean"), verdicts, strict=True)
    ]
    rows += [
        blank
        | {"claim": claim, "scope": "4", "quantity": quantity, "seed": "mean", "bounds": bounds}
        | {"document_error": error, "deviation": deviation}
        for claim, (error, deviation) in SPREADS.items()
        for quantity, bounds in (("judged", "> 0"), ("for comparison", ""))
    ]
    return pd.DataFrame(rows)


def draw(table=None):
    table = seeds_table() if table is None else table
    return seeds.draw(table, context=style.FigureContext("demo", "python_docs", 6))


def test_every_claim_has_a_cell_for_each_seed_and_for_the_mean():
    axes = draw().axes[0]
    signs = [text.get_text() for text in axes.texts]
    assert signs == ["✓", "✗", "?", "✓", "✓", "✓", "✓", "✓", "–"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1337", "1338", "over\nseeds"]
    assert [label.get_text().split()[-1] for label in axes.get_yticklabels()] == ["1", "6", "7"]


def test_every_quantity_is_a_point_with_its_spreads_and_hollow_if_it_has_no_bounds():
    lines = [line for line in draw().axes[1].get_lines() if line.get_marker() not in ("", "None")]
    points = {(line.get_xdata()[0], line.get_ydata()[0]) for line in lines}
    assert points == set(SPREADS.values())
    assert [line.get_markerfacecolor() == "white" for line in lines] == [True, False] * 2


def test_both_axes_of_the_spreads_have_the_same_range():
    axes = draw().axes[1]
    assert axes.get_xlim() == axes.get_ylim()


def test_a_table_without_rows_is_refused_in_one_sentence():
    with pytest.raises(InputError, match="table seeds: found no row"):
        draw(seeds_table().iloc[:0])


# --- the range over seeds in figures of a run ------------------------------------------------------------------


def under_seeds(table, *factors):
    """The table of the run demo, and of it under further seeds with means so many times as large."""
    further = [table.assign(run=f"demo-seed{n}", mean=table["mean"] * factor) for n, factor in enumerate(factors)]
    return pd.concat([table, *further], ignore_index=True)


def ranges(axes):
    """Bands with the transparency of the range over seeds, as (least, largest) of their vertices."""
    bands = [area for area in axes.collections if area.get_alpha() == style.SEED_ALPHA]
    return [(path[:, 1].min(), path[:, 1].max()) for path in (area.get_paths()[0].vertices for area in bands)]


@pytest.mark.parametrize("module", [fig3, fig5])
def test_the_curves_of_a_run_have_the_range_of_its_seeds_at_the_first_and_the_last_checkpoint(module):
    one = module.draw(test_figures.loop_metrics(), **test_figures.RUN)
    several = module.draw(under_seeds(test_figures.loop_metrics(), 0.5, 1.25), **test_figures.RUN)
    for before, after in zip(one.axes, several.axes, strict=True):
        assert [list(line.get_ydata()) for line in after.get_lines()] == [
            list(line.get_ydata()) for line in before.get_lines()
        ]
        assert ranges(before) == []
        assert len(ranges(after)) == 2
        assert len(after.collections) == len(before.collections)
    low, high = ranges(several.axes[-1])[0]
    assert (low, high) == pytest.approx((0.3, 0.75))
    assert "range of 3 seeds" in [text.get_text() for text in several.legends[0].get_texts()]
    assert "range of 3 seeds" not in [text.get_text() for text in one.legends[0].get_texts()]


def test_the_drift_of_a_run_has_the_range_of_its_seeds():
    values = {"reference_state": "first_state"} | test_figures.RUN
    (one,) = fig2.draw(test_figures.drift_table(), **values).axes
    (several,) = fig2.draw(under_seeds(test_figures.drift_table(), 0.5, 2.0), **values).axes
    assert ranges(one) == []
    assert ranges(several) == [pytest.approx((1.5, 6.0))] * 2
    assert len(several.collections) == len(one.collections)
    assert [list(line.get_ydata()) for line in several.get_lines()] == [
        list(line.get_ydata()) for line in one.get_lines()
    ]
    assert "range of 3 seeds" in [text.get_text() for text in several.get_legend().get_texts()]


# --- variants under several seeds ------------------------------------------------------------------------------


def test_variants_under_several_seeds_are_means_with_the_range_and_a_mark_of_each(monkeypatch):
    plain = test_variants_figure.RUNS[:1]
    monkeypatch.setattr(test_variants_figure, "RUNS", (*plain, f"{plain[0]}-seed5"))
    figure = test_variants_figure.draw()
    loops = test_variants_figure.LOOPS
    (line,) = figure.axes[0].get_lines()
    assert list(line.get_ydata()) == [400.5 + k for k in range(loops)]
    assert ranges(figure.axes[0]) == [(400, 401 + loops - 1)]
    seeds_of_ratio = [line for line in figure.axes[4].get_lines() if line.get_marker() == "_"]
    assert [list(line.get_ydata()) for line in seeds_of_ratio] == [[3.0, 3.0]]
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert entries == ["post-residual, random, noise", style.REPORTED_LABEL]


def test_a_run_under_another_seed_is_of_the_same_variant_and_looks_like_it():
    run = test_variants_figure.RUNS[0]
    assert variants.variant(f"{run}-seed12") == variants.variant(run) == "post_residual-random-noise"
    looks = variants.styles([run, f"{run}-seed12"])
    assert [to_rgb(look["color"]) for look in looks.values()] == [to_rgb(style.BLUE)]
