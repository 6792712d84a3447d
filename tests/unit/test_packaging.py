"""Files that describe the project to others agree: versions, licence, lock files, catalog."""

import json
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import twoscale
from twoscale.config import PROJECT

ENTRY = re.compile(
    r"^([\w.-]+)==(\S+) \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", re.MULTILINE
)


def read(name: str) -> str:
    return (PROJECT / name).read_text(encoding="utf-8")


def test_citation_archive_codemeta_changelog_and_package_have_one_version_and_licence():
    citation = yaml.safe_load(read("CITATION.cff"))
    archive, meta = (json.loads(read(name)) for name in (".zenodo.json", "codemeta.json"))
    latest = re.search(r"^## (\S+), (\S+)$", read("CHANGELOG.md"), re.MULTILINE)
    versions = {
        citation["version"],
        archive["version"],
        meta["version"],
        twoscale.__version__,
        latest[1],
    }
    assert len(versions) == 1
    own = tomllib.loads(read("pyproject.toml"))["project"]["license"]
    assert {citation["license"], archive["license"], meta["license"].rpartition("/")[2]} == {own}


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_a_lock_pins_what_the_requirements_and_the_conda_environments_pin(name):
    locked = {
        found: Version(version).public
        for found, version in ENTRY.findall(read(f"envs/{name}.lock.txt"))
    }
    lines = (line.partition("#")[0].strip() for line in read("requirements.txt").splitlines())
    for requirement in map(Requirement, filter(None, lines)):
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), (
            f"{requirement}: locked at {version}, run make lock"
        )
    for environment in ("analysis", "torch"):
        needed = yaml.safe_load(read(f"envs/{environment}.yaml"))["dependencies"]
        (listed,) = (entry["pip"] for entry in needed if isinstance(entry, dict))
        pins = dict(package.split("==") for package in listed)
        assert {n: Version(v).public for n, v in pins.items()} == {
            n: locked[canonicalize_name(n)] for n in pins
        }


def test_requirements_pin_every_dependency_of_the_library_and_the_workflow():
    """So that they are enough for `uv run --with-requirements`, and for `make env` with uv or
    pip.
    """
    lines = (line.partition("#")[0].strip() for line in read("requirements.txt").splitlines())
    pins = {
        canonicalize_name(found.name): found.specifier
        for found in map(Requirement, filter(None, lines))
    }
    own = tomllib.loads(read("pyproject.toml"))["project"]
    extras = own["optional-dependencies"]
    needs = {*own["dependencies"], *extras["torch"], *extras["workflow"]} - {"twoscale[torch]"}
    for needed in map(Requirement, needs):
        (pin,) = pins[canonicalize_name(needed.name)]
        assert pin.operator == "=="
        assert needed.specifier.contains(pin.version)


def test_the_range_of_versions_is_tested_and_documented():
    own = tomllib.loads(read("pyproject.toml"))["project"]
    prefix = "Programming Language :: Python :: "
    pythons = [line.removeprefix(prefix) for line in own["classifiers"] if line.startswith(prefix)]
    assert f"for version in {' '.join(pythons)}; do" in read("tests/pythons.sh")
    assert own["requires-python"] == f">={pythons[0]}"


def test_the_catalog_finds_what_its_standardized_usage_asks_for():
    assert "rule" not in read("workflow/Snakefile")  # all are in the Snakefile that it includes
    assert read("config/README.md").startswith("# Configuration\n")
    # a file and no link, which a checkout on Windows turns into a text file; with the values of the
    # checkout's config
    assert not (PROJECT / "config" / "config.yaml").is_symlink()
    assert yaml.safe_load(read("config/config.yaml")) == yaml.safe_load(read("config.yaml"))
    assert yaml.safe_load(read(".snakemake-workflow-catalog.yml"))["usage"]["report"]
    assert yaml.safe_load(read(".test/config/config.yaml")) == {"preset": "tiny"}
    (job,) = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make ${{ matrix.targets }}"]


def test_the_jobs_of_continuous_integration_run_together_what_has_to_pass_before_a_change_lands():
    (job,) = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"].values()
    targets = " ".join(job["strategy"]["matrix"]["targets"]).split()
    (suites,) = re.findall("^SUITES = (.*)$", read("Makefile"), re.MULTILINE)
    of_tools = {f"suite-{name}" for name in suites.split()} - {"suite-slurm"} | {"test-slurm"}
    required = set(re.findall("^make (.*)$", read(".ci/run"), re.MULTILINE))
    assert required == {"lint", "test", "test-runs", "test-tools"}
    # the pack needs the environment of the suite `pythons`
    assert set(targets) == required - {"test-tools"} | of_tools


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_an_old_python_is_refused_before_anything_is_installed(tmp_path):
    """A script that runs Python under another version stands for one."""
    old = tmp_path / "python3.9"
    run = "import sys; sys.version_info = (3, 9); exec(sys.argv[2])"
    old.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{run}' \"$@\"\n")
    old.chmod(0o755)
    command = [
        "make",
        "--directory",
        str(PROJECT),
        "env",
        f"PYTHON={old}",
        f"VENV={tmp_path / 'environment'}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert (
        f"{old}: found Python 3.9, expected 3.11 or newer: make PYTHON=python3.12\n" in done.stderr
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_no_recipe_gets_the_backend_of_a_notebook(tmp_path, monkeypatch):
    """`make env` imports matplotlib, which refuses the backend of another environment."""
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    further = tmp_path / "further.mk"
    further.write_text('show:\n\t@echo "backend: $$MPLBACKEND"\n')
    command = ["make", "--directory", PROJECT, "-f", "Makefile", "-f", further, "-s", "show"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "backend: \n" in done.stdout
