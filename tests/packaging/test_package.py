"""The project in the eyes of mypy, of setuptools, of a linter of containers, and of
`snakedeploy`.
"""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import twoscale
from tests.unit.test_replay import planted, table
from tests.workflow.conftest import Project, environment, fresh, publish  # noqa: F401 - a fixture
from twoscale.config import PROJECT

MYPY, HADOLINT = (
    shutil.which(name, path=Path(sys.executable).parent) for name in ("mypy", "hadolint")
)
SCRIPT = """
import twoscale
run = twoscale.open_run("results/demo", iteration=400)
states = run.trace("text", loops=12)
logits = run.logits("text", loops=[12, 12, 12])
criterion = twoscale.make_criterion("acceleration", threshold=0.01)
exits = twoscale.evaluate(run, "text", criterion)
metrics = twoscale.read_table(run, "loop_metrics")
both = twoscale.compare(run, "results/other", "loop_metrics")
"""
TYPES = {
    "run": "twoscale.model.trained_run.TrainedRun",
    "states": "dict[str, torch._tensor.Tensor]",
    "logits": "torch._tensor.Tensor",
    "criterion": "twoscale.exits.criteria.ExitCriterion",
    "exits": "pandas.DataFrame",
    "metrics": "pandas.DataFrame",
    "both": "pandas.DataFrame",
    "twoscale.__version__": "str",
}


@pytest.mark.skipif(
    not (MYPY and find_spec("pandas-stubs")), reason="needs stubs: make test-tools SUITE=packaging"
)
def test_a_users_script_has_types_and_a_wrong_name_or_argument_is_found(tmp_path):
    script, wrong = (
        tmp_path / "script.py",
        ("twoscale.opne_run", "twoscale.open_run(3)", "run.trace(loops=12)"),
    )
    script.write_text("\n".join([SCRIPT, *(f"reveal_type({name})" for name in TYPES), *wrong]))
    command = [
        MYPY,
        "--python-executable",
        sys.executable,
        "--cache-dir",
        tmp_path / "cache",
        script,
    ]
    # in a folder without the settings of the project
    lines = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    revealed = [line.split('"')[1] for line in lines if "Revealed type is" in line]
    assert [name.replace("pandas.core.frame.", "pandas.") for name in revealed] == [*TYPES.values()]
    codes = [line.rpartition("[")[2] for line in lines if ": error: " in line]
    assert codes == ["attr-defined]", "arg-type]", "call-arg]"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The package, built from a copy of the sources."""
    pytest.importorskip("setuptools", reason="needs setuptools, which builds the package")
    tmp_path = tmp_path_factory.mktemp("built")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, tmp_path)
    shutil.copytree(
        PROJECT / "src",
        tmp_path / "src",
        ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"),
    )
    build = (
        "from setuptools import build_meta as b; b.build_sdist('dist'); print('wheel: ' +"
        " b.build_wheel('dist'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return tmp_path / "dist" / done.stdout.strip().rpartition("wheel: ")[2]


def test_the_built_package_has_the_version_says_that_it_has_types_and_is_imported_alone(wheel):
    assert wheel.name.startswith(f"twoscale-{twoscale.__version__}-")
    assert wheel.stat().st_size < 1e6
    assert "twoscale/py.typed" in zipfile.ZipFile(wheel).namelist()
    assert (wheel.parent / f"twoscale-{twoscale.__version__}.tar.gz").is_file()
    # isolated, without site-packages: no other package is there
    bare = (
        f"import sys; sys.path.insert(0, {str(wheel)!r}); import twoscale;"
        f" print(twoscale.__version__)"
    )
    alone = subprocess.run(
        [sys.executable, "-I", "-S", "-c", bare], capture_output=True, text=True, check=False
    )
    assert (alone.returncode, alone.stdout.strip()) == (0, twoscale.__version__), alone.stderr


def test_a_plain_installation_is_small_and_checks_exits(wheel, tmp_path):
    """An environment with what pip installs without extras, at the pinned versions."""
    venv.create(tmp_path / "light", with_pip=True)
    folder = tmp_path / "light" / "bin"
    pins = PROJECT / "requirements.txt"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: object) -> subprocess.CompletedProcess:
        """In a folder without the sources."""
        options = {"cwd": tmp_path, "env": variables, "capture_output": True, "text": True}
        return subprocess.run([str(part) for part in command], check=False, **options)

    pip = (folder / "python", "-m", "pip", "--disable-pip-version-check")
    done = run(*pip, "install", "-c", pins, wheel)
    if done.returncode:
        pytest.skip(f"packages cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    names = {package["name"] for package in json.loads(run(*pip, "list", "--format=json").stdout)}
    assert "twoscale" in names
    assert names & {"torch", "snakemake", "datasets", "tokenizers", "huggingface_hub"} == set()
    recording = planted(documents=40)
    path = tmp_path / "table.parquet"
    table(recording, loss=recording.cost, **recording.signals).to_parquet(path)
    done = run(folder / "twoscale", "exits", "check", path, "--out", tmp_path / "out")
    assert done.stdout.startswith("Exit on entropy < "), done.stderr
    assert (tmp_path / "out" / "check.svg").is_file()
    assert "exits check TABLE" in run(folder / "twoscale", "overview").stdout
    code = "import twoscale; print(twoscale.__file__); twoscale.Recorder"
    done = run(folder / "python", "-c", code)
    assert str(tmp_path / "light") in done.stdout
    assert "pip install 'twoscale[torch]'" in done.stderr


@pytest.mark.skipif(HADOLINT is None, reason="needs hadolint: make test-tools SUITE=packaging")
def test_the_linter_has_no_objection_to_the_recipe_and_has_one_to_an_unpinned_base(tmp_path):
    recipe, careless = PROJECT / "envs" / "Dockerfile", tmp_path / "Dockerfile"
    done = subprocess.run([HADOLINT, recipe], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    text = (
        recipe.read_text()
        .replace("python:3.11-slim-bookworm", "python:latest")
        .replace(" ignore=", " ")
    )
    careless.write_text(text)
    assert subprocess.run([HADOLINT, careless], capture_output=True, check=False).returncode == 1


def test_a_deployed_workflow_plans_the_same_jobs(fresh, tmp_path_factory, monkeypatch):  # noqa: F811
    pytest.importorskip("snakedeploy", reason="needs snakedeploy: make test-tools SUITE=packaging")
    fresh.configure(seed=5)
    shutil.copy(fresh.root / "config.yaml", fresh.root / "config" / "config.yaml")
    here = fresh.plan()
    for name, value in publish(fresh, tmp_path_factory.mktemp("hub")).items():
        monkeypatch.setenv(name, value)
    folder = tmp_path_factory.mktemp("deployed")
    snakedeploy = str(Path(sys.executable).with_name("snakedeploy"))
    deploy = [
        snakedeploy,
        "deploy-workflow",
        "https://github.com/someone/twoscale",
        str(folder),
        "--tag",
        "v1",
    ]
    subprocess.run(deploy, check=True, env=environment())
    assert (folder / "config/config.yaml").read_text() == (fresh.root / "config.yaml").read_text()
    assert (folder / "config/README.md").exists()
    assert Project(folder).plan() == here
