"""The rules of the study: planned, and run to the end."""

import pandas as pd
import pytest

from tests.workflow.test_run import embedded


@pytest.mark.runs
def test_a_supplementary_figure_is_drawn_on_demand_redrawn_alone_and_in_the_report_once_its_table_exists(
    editable,
):
    assert editable.plan("results/training.pdf") == {"aggregate_training": 1, "plot_training": 1}
    editable.succeed("results/training.pdf")
    training = pd.read_parquet(editable.root / "results/tiny/tables/training.parquet")
    assert training["iteration"].tolist() == list(range(1, 21))
    editable.succeed("report_pages")
    done = editable.succeed("report_pages", "--report", "report.html")
    assert "(ERROR" not in done.stderr  # of docutils, about a caption
    page = (editable.root / "report.html").read_text()
    assert '"Supplementary figures"' in page
    assert embedded(page, "workflow-desc").count("data:image/svg+xml") == 1
    assert (
        "Held-out loss" in embedded(page, "results")["results/tiny/figures/training.svg"]["caption"]
    )
    drawing = editable.root / "src/twoscale/studies/training/draw.py"
    drawing.write_text(drawing.read_text() + "\nADDED = 1\n")
    assert editable.plan("results/training.pdf") == {"plot_training": 1}
    assert editable.plan() == {}
