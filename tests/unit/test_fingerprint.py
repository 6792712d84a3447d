"""Which edits change the fingerprint of the code behind a rule."""

import shutil
from pathlib import Path

import pytest

from twoscale.base import InputError
from twoscale.jobs import fingerprint

PROJECT = Path(__file__).parents[2]
SCRIPTS = PROJECT / "scripts"
LIBRARY = PROJECT / "src" / "twoscale"

SCRIPT = '''"""A script."""
from twoscale import near
def main():
    from twoscale.inner import deep
    return near.value, deep.value
'''

NEAR = '''"""Near."""
import twoscale.far
from twoscale import config, tables
from twoscale.config.definitions import value as one
from twoscale.training.metrics_log import value as shown
value = f"{1:>3}"
'''

FRONT = '''"""The library."""
def __getattr__(name):
    from twoscale import public
    return getattr(public, name)
'''

DEEP = """
from typing import TYPE_CHECKING
from . import sibling
from ..cousins.second import value
if TYPE_CHECKING:
    import twoscale.stranger
else:
    import twoscale.cousins.third
"""

MODULES = {
    "__init__.py": FRONT,
    "public.py": "value = 9\n",
    "near.py": NEAR,
    "far.py": "value = [1, None, ()]\n",
    "inner/__init__.py": "value = 2\n",
    "inner/deep.py": DEEP,
    "inner/sibling.py": "value = 3\n",
    "cousins/second.py": "value = 4\n",
    "cousins/third.py": "value = 4\n",
    "config/__init__.py": "from twoscale.config import sections\n",
    "config/sections.py": "value = 5\n",
    "config/definitions.py": "value = 5\n",
    "training/metrics_log.py": "value = 6\n",
    "tables.py": "value = 6\n",
    "stranger.py": "value = 7\n",
    "figures/fig3.py": "from twoscale.figures import style\n",
    "figures/style.py": "value = 8\n",
}
COVERED = [
    "scripts/job.py",
    *(
        f"src/twoscale/{name}"
        for name in (
            "near.py",
            "far.py",
            "inner/__init__.py",
            "inner/deep.py",
            "inner/sibling.py",
            "cousins/second.py",
            "cousins/third.py",
            "config/definitions.py",
        )
    ),
]
FIGURE = ["src/twoscale/figures/fig3.py", "src/twoscale/figures/style.py"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A script that imports `near` and, inside a function, the package `inner`; these import further modules."""
    files = {"scripts/job.py": SCRIPT, **{f"src/twoscale/{name}": content for name, content in MODULES.items()}}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def digest(project: Path, *modules: str) -> str:
    """Of the files as they are now: what an earlier call has parsed is forgotten."""
    for function in vars(fingerprint).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()
    return fingerprint.fingerprint(project / "scripts/job.py", *modules)


def add_statement(path: Path) -> None:
    with path.open("a") as file:
        file.write("added = 1\n")


@pytest.mark.parametrize("path", COVERED)
def test_a_statement_anywhere_among_the_imports_counts(project, path):
    before = digest(project)
    add_statement(project / path)
    assert digest(project) != before


@pytest.mark.parametrize(
    "name",
    [
        *("config/__init__.py", "config/sections.py", "tables.py", "training/metrics_log.py"),
        *("stranger.py", "figures/fig3.py", "__init__.py", "public.py"),
    ],
)
def test_modules_that_are_excluded_or_not_imported_do_not_count(project, name):
    before = digest(project)
    add_statement(project / "src/twoscale" / name)
    assert digest(project) == before


@pytest.mark.parametrize("line", ["import twoscale", "from twoscale import value", "from twoscale import *"])
@pytest.mark.parametrize("name", ["__init__.py", "public.py"])
def test_a_script_that_uses_a_public_name_of_the_package_depends_on_its_module(project, line, name):
    script = project / "scripts/job.py"
    script.write_text(f"{line}\n{script.read_text()}")
    before = digest(project)
    add_statement(project / "src/twoscale" / name)
    assert digest(project) != before


@pytest.mark.parametrize("path", [*COVERED, *FIGURE])
def test_modules_that_a_script_imports_dynamically_count(project, path):
    before = digest(project, "twoscale.figures.fig3")
    add_statement(project / path)
    assert digest(project, "twoscale.figures.fig3") != before


@pytest.mark.parametrize("module", ["twoscale.figures.fig9", "twoscale.near.value", "numpy"])
def test_an_unknown_module_is_refused(project, module):
    with pytest.raises(InputError, match=rf"module {module}: found no file in"):
        fingerprint.fingerprint(project / "scripts/job.py", module)


def test_comments_docstrings_and_layout_do_not_count(project):
    before = digest(project)
    (project / "scripts/job.py").write_text(
        '"""Another text."""\n# a comment\nfrom twoscale import (\n    near,\n)\n\n\n'
        'def main():\n    """New."""\n    from twoscale.inner import deep  # here\n'
        "    return (near.value, deep.value)\n"
    )
    assert digest(project) == before


def test_the_fingerprint_does_not_depend_on_the_folder(project, tmp_path_factory):
    moved = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(project, moved, dirs_exist_ok=True)
    assert digest(moved) == digest(project)


# Also checks that all Python versions yield the same: run the test with each.
GOLDEN = "a4ffe3d77f80ada7"


def test_the_fingerprint_is_the_same_on_every_python(project):
    assert digest(project) == GOLDEN


def test_every_entry_script_has_another_fingerprint():
    digests = {path.stem: fingerprint.fingerprint(path) for path in SCRIPTS.glob("*.py")}
    assert len(set(digests.values())) == len(digests) > 10


def test_figures_do_not_depend_on_the_model():
    names = {
        path.relative_to(LIBRARY).as_posix()
        for name in ("fig1", "fig4")
        for path in fingerprint._closure([LIBRARY / f"figures/{name}.py"])
    }
    assert "figures/style.py" in names
    assert not any(name.startswith("model/") for name in names)


def test_a_criterion_file_without_python_code_is_refused(tmp_path):
    path = tmp_path / "criterion.py"
    path.write_text("class Mine(\n")
    for name in (path, tmp_path / "gone.py"):
        with pytest.raises(InputError, match=f"exit criterion file {name}: cannot be read"):
            fingerprint.criterion_file_fingerprint(str(name), "Mine")


def test_a_criterion_that_a_file_lacks_is_answered_with_the_nearest_class(tmp_path):
    path = tmp_path / "criterion.py"
    path.write_text("import numpy as mine\nfrom math import pi as mines\nMax = mini = 3\nclass Mined: ...\n")
    for name in ("Mined", "mine", "mines", "Max", "mini"):
        fingerprint.criterion_file_fingerprint(str(path), name)
    for name, nearest in (("Mine", "Mined"), ("minus", None), ("numpy", None), ("pi", None)):
        with pytest.raises(InputError, match=f"found no class '{name}', expected one") as raised:
            fingerprint.criterion_file_fingerprint(str(path), name)
        assert ("did you mean" in str(raised.value)) == (nearest is not None)
        assert nearest is None or f"(did you mean {nearest}?)" in str(raised.value)
    path = tmp_path / "another.py"  # parsed files are cached
    path.write_text("from elsewhere import *\n")
    assert len(fingerprint.criterion_file_fingerprint(str(path), "Any")) == 16


HELPERS = {
    "helper.py": "from mine.inner import value\n",
    "mine/__init__.py": "",
    "mine/inner.py": "from . import sibling\nimport numpy, json, gone\nvalue = 1\n",
    "mine/sibling.py": "from twoscale.exits.oracle import converged_from\n",
    "stranger.py": "value = 1\n",
}


@pytest.mark.parametrize(("name", "counts"), [(name, name != "stranger.py") for name in HELPERS])
def test_the_modules_that_a_criterion_file_imports_count(tmp_path, monkeypatch, name, counts):
    digests = []
    for edited in (False, True):
        folder = tmp_path / str(edited)
        for helper, text in HELPERS.items():
            (folder / helper).parent.mkdir(parents=True, exist_ok=True)
            (folder / helper).write_text(text)
        if edited:
            add_statement(folder / name)
        file = folder / "criterion.py"
        file.write_text("import helper\nclass Mine: ...\n")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            digests.append(fingerprint.criterion_file_fingerprint(str(file), "Mine"))
    assert (digests[0] != digests[1]) == counts


def test_the_library_modules_that_a_criterion_file_imports_count_but_no_installed_package(tmp_path):
    file = tmp_path / "criterion.py"
    file.write_text("import torch.nn.functional, os, numpy\nfrom twoscale.exits.oracle import converged_from\n")
    found = fingerprint._users_files(file)
    assert found[0] == file
    assert all(path.is_relative_to(LIBRARY) for path in found[1:])
    assert LIBRARY / "exits/oracle.py" in found


def test_the_modules_that_no_fingerprint_covers_exist():
    for name in fingerprint.EXCLUDED:
        assert fingerprint._module_file(PROJECT, name), name
