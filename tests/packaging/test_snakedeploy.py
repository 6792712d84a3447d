"""`snakedeploy` deploys the workflow from a Git repository, and the deployed one plans the same jobs."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.workflow.conftest import Project, environment, fresh, publish  # noqa: F401 - a fixture

pytest.importorskip("snakedeploy", reason="needs snakedeploy: make test-tools SUITE=packaging")


def test_a_deployed_workflow_plans_the_same_jobs(fresh, tmp_path_factory, monkeypatch):  # noqa: F811
    fresh.configure(seed=5)
    here = fresh.plan()
    for name, value in publish(fresh, tmp_path_factory.mktemp("hub")).items():
        monkeypatch.setenv(name, value)
    folder = tmp_path_factory.mktemp("deployed")
    snakedeploy = str(Path(sys.executable).with_name("snakedeploy"))
    deploy = [snakedeploy, "deploy-workflow", "https://github.com/someone/twoscale", str(folder), "--tag", "v1"]
    subprocess.run(deploy, check=True, env=environment())
    assert (folder / "config/config.yaml").read_text() == (fresh.root / "config.yaml").read_text()
    assert not (folder / "config/config.yaml").is_symlink()
    assert (folder / "config/README.md").exists()
    assert Project(folder).plan() == here
