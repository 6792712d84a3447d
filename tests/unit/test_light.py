"""What `pip install .` has without extras: the command works, and the rest says what to install.

tests/packaging does the same in an environment that has no other packages.
"""

import json
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from tests.small import ROOT
from tests.unit.test_recorder_depth import record
from tests.unit.test_replay import planted, table
from twoscale.replay.recording import KEYS, LOSS, TOP1
from twoscale.tables import columns

DEMO = ROOT / "docs" / "demo-release" / "demo"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def of_extras() -> list[str]:
    """Names under which the packages of the extras are imported."""
    extras = PROJECT["optional-dependencies"]
    needs = map(Requirement, [*extras["torch"], *extras["workflow"]])
    return sorted({need.name.replace("-", "_") for need in needs} - {"twoscale"})


BLOCK = """
import sys

class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def without_extras(code: str, *arguments: object) -> subprocess.CompletedProcess:
    """Run Python code where these packages cannot be imported."""
    block = BLOCK.format(names=of_extras())
    command = [sys.executable, "-c", block + code, *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT / "src", capture_output=True, text=True, check=False, timeout=300
    )


def twoscale(*arguments: object) -> str:
    """The output of a command that succeeds without the extras."""
    done = without_extras("from twoscale.cli import main; main()", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_exits_are_checked_and_dealt_without_torch(tmp_path):
    recording = planted(documents=8)
    path = tmp_path / "table.parquet"
    table(recording, loss=recording.cost, **recording.signals).to_parquet(path)
    assert "fixed at" in twoscale("exits", "check", path, "--tolerance", 0.3, "--out", tmp_path)
    dealt = twoscale("exits", "random", tmp_path / "exits.parquet", "--criterion", "entropy")
    assert len(json.loads(dealt)) == 8


def test_recorded_models_are_drawn_and_runs_compared_without_torch(tmp_path):
    record(tmp_path / "mine", exits={"step_norm": [2.0]})
    assert "fig1.pdf" in twoscale("draw", tmp_path / "mine")
    assert "depth-card.md" in twoscale("card", tmp_path / "mine")
    assert twoscale("card", tmp_path / "mine", "--hub").startswith("---\nmodel-index:\n")
    overnight = ROOT / "docs" / "fineweb" / "overnight"
    rows = twoscale("compare", DEMO, overnight, "claims").splitlines()
    assert {row.partition(",")[0] for row in rows} == {"run", "demo", "overnight"}


@pytest.mark.parametrize(
    "code",
    [
        "from twoscale import Recorder",
        "import twoscale; twoscale.open_run('results/demo')",
        "from twoscale.recorder import Recorder",
    ],
)
def test_what_needs_torch_names_the_extra_to_install(code):
    done = without_extras(code)
    (line,) = [line for line in done.stderr.splitlines() if "MissingLibraryError: " in line]
    sentence = "torch is not installed, but part of the extra torch: pip install 'twoscale[torch]'"
    assert sentence in line
    caught = f"try:\n    {code}\nexcept ImportError:\n    print('caught')"
    assert without_extras(caught).stdout == "caught\n"


def test_help_and_overview_need_no_package_at_all():
    """So that the command starts at once."""
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from twoscale.cli import main; main()"
    for arguments in (["--help"], ["overview"], ["exits", "check", "--help"]):
        command = [sys.executable, "-I", "-S", "-c", code, ROOT / "src", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    assert "example: twoscale exits check" in done.stdout
    for word in (".npz", "vLLM-Hook", "nats", *KEYS, LOSS, TOP1, *columns("gate_exits")):
        assert word in done.stdout
