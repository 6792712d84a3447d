"""A pack is made here and used where there is no network and nothing but what a machine with a GPU
has; on the CPU.

It needs pip's registry for the wheels, and the environment with Python 3.12 and torch of the tests
of other Pythons.
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

ROOT = Path(__file__).parents[2]
PYTHON = Path(sys.prefix, "pythons", "3.12", "bin", "python")
NO_NETWORK = ["unshare", "--net"] if os.getuid() == 0 else ["unshare", "--map-root-user", "--net"]
PATIENCE, MINUTES = 2400, 6  # seconds; of the session, which a busy machine may exceed
NOT_CODE = (
    ".venv",
    ".git",
    ".snakemake",
    "results",
    "gpu-pack",
    "site",
    "text",
    "__pycache__",
    ".*_cache",
)
FIGURES = {f"fig{number}.pdf" for number in range(1, 6)}


@pytest.fixture
def machine(tmp_path):
    """A checkout with a pack on a machine where `python3` is the only name of an interpreter on
    PATH.
    """
    if subprocess.run([*NO_NETWORK, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a namespace without network, which unshare may not make here")
    has_torch = [PYTHON, "-c", "import torch"]
    if (
        not PYTHON.exists()
        or subprocess.run(has_torch, capture_output=True, check=False).returncode
    ):
        pytest.skip("needs Python 3.12 with torch: make test-tools SUITE=pythons")
    here = tmp_path / "here"
    shutil.copytree(ROOT, here, ignore=shutil.ignore_patterns(*NOT_CODE), symlinks=True)
    shell = os.environ | {"PYTHONPATH": str(here / "src")}
    compiles = tmp_path / "compiles.yaml"
    compiles.write_text("train: {compile: true}\n")  # as on CUDA
    make = [
        "make",
        "--old-file=env",
        f"VENV={sys.prefix}",
        "gpu-pack",
        "PRESET=tiny",
        f"CONFIG={compiles}",
    ]
    done = subprocess.run(make, cwd=here, capture_output=True, text=True, env=shell, check=False)
    if "python -m pip: found exit status" in done.stderr:
        pytest.skip("needs wheels, which pip could not download")
    assert done.returncode == 0, done.stdout + done.stderr
    machine = Machine(here, tmp_path)
    yield machine
    with suppress(ProcessLookupError, FileNotFoundError):  # after a failure
        os.killpg(machine.session["pid"], signal.SIGKILL)


class Machine:
    def __init__(self, here: Path, folder: Path) -> None:
        self.root = folder / "there"
        shutil.copytree(here, self.root, ignore=shutil.ignore_patterns(".snakemake"))
        shutil.rmtree(self.root / "results")
        subprocess.run([PYTHON, ROOT / "tests/pack/machine.py", folder / "python"], check=True)
        names = [path for path in (folder / "python/bin").glob("python*") if path.name != "python3"]
        interpreter = (folder / "python/bin/python3").resolve()
        for path in (*names, folder / "python/bin/python3"):
            path.unlink()
        (folder / "python/bin/python3").symlink_to(interpreter)
        self.environment = {
            "PATH": f"{folder}/python/bin:/usr/bin:/bin",
            "HOME": str(folder),
            "OMP_NUM_THREADS": "1",
        }
        assert shutil.which("python", path=self.environment["PATH"]) in (None, "/usr/bin/python")

    def pack(self, *arguments: str) -> str:
        command = [*NO_NETWORK, "gpu-pack/pack.sh", *arguments]
        done = subprocess.run(
            command,
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr + self.log
        return done.stdout

    def wait(self, happened) -> None:
        end = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < end, self.log
            time.sleep(1)

    @property
    def session(self) -> dict:
        return json.loads((self.root / "results/tiny/gpu/session.json").read_text())

    @property
    def log(self) -> str:
        path = self.root / "results/tiny/gpu/log.txt"
        return path.read_text() if path.exists() else ""


def jobs_done(status: str) -> tuple[int, int]:
    """How many jobs of how many are done."""
    found = re.search(r"(\d+) of (\d+) steps", status)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def test_a_killed_session_is_continued_and_five_figures_and_the_claims_come_out_of_its_archive(
    machine, tmp_path
):
    assert "is running" in machine.pack("run", "--minutes", str(MINUTES), "--device", "cpu")
    first = machine.root / "results/tiny/checkpoints/iteration_000000.safetensors"
    machine.wait(first.exists)
    machine.wait(lambda: jobs_done(machine.pack("status"))[0] >= 1)
    chosen = (machine.root / "results/tiny/gpu/config.yaml").read_text()
    os.killpg(machine.session["pid"], signal.SIGKILL)
    machine.wait(
        lambda: "stopped in stage" in machine.pack("status", "collect", "--to", str(tmp_path))
    )
    with zipfile.ZipFile(tmp_path / "tiny.zip") as early:
        assert {"tiny/gpu/session.json", "tiny/gpu/log.txt", "tiny/gpu/trial.json"} <= set(
            early.namelist()
        )
    written = first.stat().st_mtime_ns

    assert "has ended with exit status 0" in machine.pack("run", "--wait"), machine.log
    status = machine.pack("status")
    assert "tiny on cpu: finished" in status, machine.log
    print(status, machine.session)
    assert first.stat().st_mtime_ns == written
    assert (machine.root / "results/tiny/gpu/config.yaml").read_text() == chosen
    done, count = jobs_done(status)
    assert done == count > 0
    assert not re.search(r"rule (prepare_text|tokenize_text|join_tokens)", machine.log)

    machine.pack("collect", "--to", str(tmp_path))
    with zipfile.ZipFile(tmp_path / "tiny.zip") as file:
        assert FIGURES | {"claims.md", "training.pdf", "snapshot/manifest.json"} <= set(
            file.namelist()
        )
        assert all(file.read(name).startswith(b"%PDF") for name in FIGURES)
        assert json.loads(file.read("snapshot/manifest.json"))["versions"]["python"].startswith(
            "3.12"
        )
    stages = [machine.session[name]["status"] for name in ("training", "analyses", "latency")]
    assert stages == [0, 0, 0]
    assert machine.session["profile"]["seconds"] > 0
    assert (
        "compiled, 4 sequences" in machine.session["choice"]
        or "because compilation" in machine.session["choice"]
    )
