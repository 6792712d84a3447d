"""The recipe of the container in the eyes of a linter."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from twoscale.config import PROJECT

HADOLINT = shutil.which("hadolint", path=Path(sys.executable).parent)


@pytest.mark.skipif(HADOLINT is None, reason="needs hadolint: make test-tools SUITE=packaging")
def test_the_linter_has_no_objection_to_the_recipe_and_has_one_to_an_unpinned_base(tmp_path):
    recipe = PROJECT / "envs" / "Dockerfile"
    done = subprocess.run([HADOLINT, recipe], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    careless = tmp_path / "Dockerfile"
    careless.write_text(
        recipe.read_text().replace("python:3.11-slim-bookworm", "python:latest").replace(" ignore=", " ")
    )
    assert subprocess.run([HADOLINT, careless], capture_output=True, check=False).returncode == 1
