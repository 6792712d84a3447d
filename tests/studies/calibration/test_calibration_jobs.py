"""The jobs of the study: what a measurement depends on."""

import json

from tests.small import job_row, of, project
from twoscale.studies.calibration.study import JOBS


def job(**sections):
    """The slice of the measurement under KL."""
    return job_row(JOBS, "measure_calibration").config(project(**sections))(of(criterion="kl"))


def test_a_calibration_depends_on_its_grid_and_on_no_guarantee():
    values = json.loads(job())
    assert values["exits"]["criteria"] == {"kl": {"thresholds": [0.001, 0.01, 0.1]}}
    assert values["sequences"] == 32
    assert job() == job(guarantees={"nats": [0.5], "unit": "document"})
    assert job() == job(calibration={"criteria": {"step_norm": {"thresholds": [2.0]}}})
    assert job() != job(calibration={"criteria": {"kl": {"thresholds": [0.5]}}})
    assert job() != job(calibration={"tokens": 512})
