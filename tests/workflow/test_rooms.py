"""A study is a room: without its folder and its name the project plans, passes its lint and its
tests.
"""

import re
import shutil

import pytest

from tests.workflow.conftest import ROOT, Project, checkout
from twoscale.base import study_parts
from twoscale.figures.catalogue import figures

# One with a measurement and a figure, one with a grid of exit criteria and two figures, one with
# runs and a target.
ROOMS = sorted({"depth", "arena", "sweeps"} & study_parts().keys())
# Of the tests, those of the modules that ask for parts of studies.
CORE = "test_config or test_imports or test_tables or test_workflow"


def project_without(rooms, folder) -> Project:
    """A copy of the project with its tests, without these studies."""
    project = checkout(folder)
    for part in ("tests", "docs"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    base = folder / "src" / "twoscale" / "base.py"
    for room in rooms:
        shutil.rmtree(folder / "src" / "twoscale" / "studies" / room)
        base.write_text(base.read_text().replace(f'    "{room}",\n', ""))
    return project


@pytest.mark.runs
@pytest.mark.parametrize("room", ROOMS)
def test_a_project_without_a_study_plans_everything_else(room, tmp_path):
    planned = project_without([room], tmp_path).plan("all", "supplementary")
    targets = ("all", "supplementary")
    drawn = {
        figure.name
        for figure in figures()
        if figure.target in targets and figure.study_folder != room
    }
    plots = {rule for rule in planned if rule.startswith("plot_")}
    assert plots <= {"plot_loops", *(f"plot_{name}" for name in drawn)}
    assert {f"plot_fig{number}" for number in range(1, 6)} <= planned.keys()
    written = (ROOT / "src" / "twoscale" / "studies" / room / "rules.smk").read_text()
    jobs = {*re.findall(r"^use rule \w+ as (\w+) with:", written, re.MULTILINE)}
    assert jobs
    assert not jobs & planned.keys()


@pytest.mark.runs
def test_a_project_without_studies_passes_ruff_collects_all_tests_and_passes_those_of_its_core(
    tmp_path,
):
    project = project_without(ROOMS, tmp_path)
    tests = ("pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", CORE)
    for command in (("ruff", "check", "--no-cache", "."), tests):
        done = project.python("-m", *command)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr
