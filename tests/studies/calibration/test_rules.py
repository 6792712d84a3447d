"""The rules of the study: planned, and run to the end."""

import pandas as pd
import pytest

from tests.workflow.test_users_criterion import CONFIG, CRITERION, DECISION, OF_THE_BATCH


@pytest.mark.runs
def test_another_guarantee_chooses_thresholds_without_a_measurement(editable):
    figure, aggregated = "results/calibration.pdf", {"aggregate_calibration": 1, "plot_calibration": 1}
    assert editable.plan(figure) == {"measure_calibration": 2} | aggregated
    editable.succeed(figure)
    calibration = pd.read_parquet(editable.root / "results/tiny/tables/calibration.parquet")
    assert set(calibration["criterion"]) == {"step_norm", "kl"}
    assert (editable.root / figure).read_bytes().startswith(b"%PDF")
    assert editable.plan(figure) == {}
    editable.configure(calibration={"nats": [0.3]})
    assert editable.plan(figure) == aggregated
    editable.configure(calibration={"tokens": 512})
    assert editable.plan(figure)["measure_calibration"] == 2


@pytest.mark.runs
def test_a_criterion_of_the_calibration_alone_is_tried_before_it_is_measured(editable):
    (editable.root / "patience.py").write_text(CRITERION.replace(DECISION, OF_THE_BATCH))
    others = {"step_norm": None, "kl": None}
    editable.configure(calibration={"criteria": CONFIG["exits"]["criteria"] | others})
    assert editable.plan("results/calibration.pdf")["measure_calibration"] == 1
    done = editable.run("results/calibration.pdf")
    assert done.returncode != 0
    sentence = "error: exit criterion 'patience' of the file patience.py at 2: found 3 evaluations of token 0"
    assert sentence in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
