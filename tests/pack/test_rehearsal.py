"""A pack is made here and used where there is no network and nothing but what a machine with a GPU has; on the CPU.

It needs pip's registry for the wheels, and the environment of `make test-pythons` with Python 3.12 and torch.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from tests.workflow.conftest import Project, checkout
from twoscale import config

ROOT = Path(__file__).parents[2]
PYTHON = Path(sys.prefix, "pythons", "3.12", "bin", "python")
NO_NETWORK = ["unshare", "--net"] if os.getuid() == 0 else ["unshare", "--map-root-user", "--net"]
PATIENCE = 1200  # seconds
FIGURES = {f"fig{number}.pdf" for number in range(1, 6)}


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Project:
    """A checkout with a pack."""
    if subprocess.run([*NO_NETWORK, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a namespace without network, which unshare may not make here")
    has_torch = [PYTHON, "-c", "import torch"]
    if not PYTHON.exists() or subprocess.run(has_torch, capture_output=True, check=False).returncode:
        pytest.skip("needs Python 3.12 with torch: make test-pythons")
    project = checkout(tmp_path_factory.mktemp("here") / "checkout")
    shutil.copy(ROOT / "Makefile", project.root)
    shutil.copytree(ROOT / "tests", project.root / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    make = ["make", "--old-file=env", f"VENV={sys.prefix}", "gpu-pack", "PRESET=tiny"]
    variables = os.environ | {"PYTHONPATH": str(project.root / "src")}
    done = subprocess.run(make, cwd=project.root, capture_output=True, text=True, env=variables, check=False)
    if "python -m pip: found exit status" in done.stderr:
        pytest.skip("needs wheels, which pip could not download")
    assert done.returncode == 0, done.stdout + done.stderr
    return project


class Machine:
    """The checkout with its pack on the other machine: without results, records of Snakemake and network."""

    def __init__(self, packed: Project, folder: Path) -> None:
        self.root = folder / "checkout"
        shutil.copytree(packed.root, self.root, ignore=shutil.ignore_patterns(".snakemake", "snakemake.log"))
        shutil.rmtree(self.root / "results")
        subprocess.run([PYTHON, ROOT / "tests/pack/machine.py", folder / "python"], check=True)
        self.environment = os.environ | {"PYTHON": str(folder / "python/bin/python"), "OMP_NUM_THREADS": "1"}

    def pack(self, *arguments: str) -> str:
        command = [*NO_NETWORK, "gpu-pack/pack.sh", *arguments]
        done = subprocess.run(
            command, cwd=self.root, env=self.environment, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def wait(self, happened) -> None:
        end = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < end, self.log
            time.sleep(0.2)

    @property
    def session(self) -> dict:
        return json.loads((self.root / "results/tiny/gpu/session.json").read_text())

    @property
    def log(self) -> str:
        return (self.root / "results/tiny/gpu/log.txt").read_text()


@pytest.fixture
def machine(packed, tmp_path):
    machine = Machine(packed, tmp_path)
    yield machine
    with suppress(ProcessLookupError):  # after a failure
        os.killpg(machine.session["pid"], signal.SIGKILL)


def jobs_done(status: str) -> tuple[int, int]:
    """How many jobs of how many are done."""
    found = re.search(r"jobs: (\d+) of (\d+) are done", status)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def test_a_killed_session_is_continued_and_five_figures_and_the_claims_come_out_of_its_archive(machine):
    assert "is running" in machine.pack("run", "--minutes", "3", "--device", "cpu")
    machine.wait(lambda: jobs_done(machine.pack("status"))[0] >= 2)
    chosen = config.read_yaml(machine.root / "results/tiny/gpu/config.yaml")
    os.killpg(machine.session["pid"], signal.SIGKILL)
    machine.wait(lambda: "stopped in stage workflow" in machine.pack("status"))
    with zipfile.ZipFile(machine.root / machine.pack("collect").strip()) as early:
        assert {"tiny/gpu/session.json", "tiny/gpu/log.txt", "manifest.json"} <= set(early.namelist())
    first = machine.root / "results/tiny/checkpoints/iteration_000000.safetensors"
    written = first.stat().st_mtime_ns

    assert "has ended with exit status 0" in machine.pack("run", "--wait"), machine.log
    status = machine.pack("status")
    assert "tiny on cpu: finished" in status, machine.log
    assert first.stat().st_mtime_ns == written
    assert config.read_yaml(machine.root / "results/tiny/gpu/config.yaml") == chosen
    iterations = chosen["train"]["iterations"]
    assert f"training: iteration {iterations} of {iterations}" in status
    done, count = jobs_done(status)
    assert done == count > 0
    assert not re.search(r"rule (prepare_text|tokenize_text|join_tokens)", machine.log)

    archive = machine.root / machine.pack("collect").strip()
    assert archive.stat().st_size < 15_000_000
    with zipfile.ZipFile(archive) as file:
        assert FIGURES | {"claims.md", "training.pdf", "tiny/training/metrics.csv"} <= set(file.namelist())
        assert all(file.read(name).startswith(b"%PDF") for name in FIGURES)
        manifest = json.loads(file.read("manifest.json"))
    assert manifest["training"]["iterations"] == iterations
    assert manifest["session"]["check"].keys() == {"status", "seconds"}
    assert manifest["left_out"] == []
    assert manifest["versions"]["python"].startswith("3.12")
