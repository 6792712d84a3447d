"""What counts as a change of the code behind a rule."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from twoscale import fingerprint

SCRIPTS = Path(__file__).parents[2] / "scripts"

SCRIPT = '''"""A script."""
from twoscale import near
def main():
    from twoscale.inner import deep
    return near.value, deep.value
'''


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A script that imports `near`, which imports `far`, and, inside a function, `inner.deep`."""
    package = tmp_path / "twoscale"
    (package / "inner").mkdir(parents=True)
    (tmp_path / "job.py").write_text(SCRIPT)
    (package / "near.py").write_text(
        '"""Near."""\nimport twoscale.far\nfrom twoscale import settings\nvalue = f"{1:>3}"\n'
    )
    (package / "far.py").write_text("value = [1, None, ()]\n")
    (package / "inner" / "deep.py").write_text("value = 3\n")
    (package / "settings.py").write_text("value = 4\n")
    (package / "stranger.py").write_text("value = 5\n")
    return tmp_path


def digest(scripts: Path) -> str:
    """In a new process, because parsed files are kept."""
    code = "import pathlib, sys; from twoscale import fingerprint as f; print(f.fingerprint(pathlib.Path(sys.argv[1])))"
    return subprocess.run(
        [sys.executable, "-c", code, str(scripts / "job.py")],
        env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


@pytest.mark.parametrize("path", ["job.py", "twoscale/near.py", "twoscale/far.py", "twoscale/inner/deep.py"])
def test_a_statement_anywhere_among_the_imports_counts(scripts, path):
    before = digest(scripts)
    with (scripts / path).open("a") as file:
        file.write("added = 1\n")
    assert digest(scripts) != before


@pytest.mark.parametrize("path", ["twoscale/settings.py", "twoscale/stranger.py"])
def test_modules_that_carry_values_or_are_not_imported_do_not_count(scripts, path):
    before = digest(scripts)
    with (scripts / path).open("a") as file:
        file.write("added = 1\n")
    assert digest(scripts) == before


def test_comments_docstrings_and_layout_do_not_count(scripts):
    before = digest(scripts)
    (scripts / "job.py").write_text(
        '"""Another text."""\n# a comment\nfrom twoscale import (\n    near,\n)\n\n\n'
        'def main():\n    """New."""\n    from twoscale.inner import deep  # here\n'
        "    return (near.value, deep.value)\n"
    )
    assert digest(scripts) == before


def test_the_fingerprint_does_not_depend_on_the_folder(scripts, tmp_path_factory):
    moved = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(scripts, moved, dirs_exist_ok=True)
    assert digest(moved) == digest(scripts)


# also guards that an older or newer Python gives the same: run the test with each
GOLDEN = "38488e8734e93857"


def test_the_fingerprint_is_the_same_on_every_python(scripts):
    assert digest(scripts) == GOLDEN


def test_every_entry_script_has_a_fingerprint_of_its_own():
    digests = {path.stem: fingerprint.fingerprint(path) for path in SCRIPTS.glob("*.py")}
    assert len(set(digests.values())) == len(digests) > 10


def test_the_entry_scripts_of_figures_do_not_depend_on_the_model():
    files = {path.name for name in ("fig1", "fig4") for path in fingerprint._closure(SCRIPTS / f"{name}.py")}
    assert "style.py" in files
    assert "model.py" not in files
