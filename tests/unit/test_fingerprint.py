"""Which edits change the fingerprint of the code behind a rule."""

from pathlib import Path

import pytest

from twoscale.base import InputError
from twoscale.jobs import fingerprint

SCRIPT = '''"""A script."""
from twoscale import near
def main():
    from twoscale.inner import deep
    return near.value, deep.value
'''
NEAR = '''"""Near, with a page."""
page = "pages/near.md.j2"
import twoscale.far
from twoscale import config, tables
from twoscale.config.definitions import value as one
from twoscale.studies.mine.study import value as two
from twoscale.training.metrics_log import value as shown
value = f"{1:>3}"
'''
DEEP = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import twoscale.stranger
else:
    import twoscale.cousin
"""
MODULES = {
    "near.py": NEAR,
    "far.py": "value = [1, None, ()]\n",
    "pages/near.md.j2": "# {{ title }}\n",
    "inner/__init__.py": "value = 2\n",
    "inner/deep.py": DEEP,
    "cousin.py": "value = 4\n",
    "config/definitions.py": "value = 5\n",
    "studies/mine/study.py": "value = 9\n",
    "figures/fig3.py": "from twoscale.figures import style\n",
    "figures/style.py": "value = 8\n",
    # covered by no fingerprint
    "config/__init__.py": "from twoscale.config import sections\n",
    "config/sections.py": "value = 5\n",
    "training/metrics_log.py": "value = 6\n",
    "tables.py": "value = 6\n",
    "stranger.py": "value = 7\n",
}
COVERED = [
    "near.py",
    "far.py",
    "pages/near.md.j2",
    "inner/__init__.py",
    "inner/deep.py",
    "cousin.py",
    "config/definitions.py",
    "studies/mine/study.py",
]
FIGURE = ["figures/fig3.py", "figures/style.py"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    """A script that imports `near` and, inside a function, the package `inner`; these import
    further modules.
    """
    files = {
        "scripts/job.py": SCRIPT,
        **{f"src/twoscale/{name}": content for name, content in MODULES.items()},
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(fingerprint, "SOURCE", tmp_path / "src")
    return tmp_path


def digest(project: Path, *modules: str) -> str:
    """Of the files as they are now: what an earlier call has parsed is forgotten."""
    for function in vars(fingerprint).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()
    return fingerprint.fingerprint(project / "scripts/job.py", *modules)


@pytest.mark.parametrize("name", ["../../scripts/job.py", *MODULES])
def test_an_edit_counts_where_the_module_is_imported_and_not_excluded(project, name):
    path = project / "src/twoscale" / name
    before, with_figure = digest(project), digest(project, "twoscale.figures.fig3")
    path.write_text(path.read_text() + "added = 1\n")
    counts = name in ["../../scripts/job.py", *COVERED]
    assert (digest(project) != before) == counts
    assert (digest(project, "twoscale.figures.fig3") != with_figure) == (counts or name in FIGURE)


def test_comments_docstrings_and_layout_do_not_count(project):
    before = digest(project)
    (project / "scripts/job.py").write_text(
        '"""Another text."""\n# a comment\nfrom twoscale import (\n    near,\n)\n\n\n'
        'def main():\n    """New."""\n    from twoscale.inner import deep  # here\n'
        "    return (near.value, deep.value)\n"
    )
    assert digest(project) == before


def test_a_module_can_move_but_not_be_exchanged(project):
    near, source = project / "src/twoscale/near.py", project / "src/twoscale"
    digests = []
    for module, code in (
        ("far", "value = 1\n"),
        ("moved", "value = 1\n"),
        ("another", "value = 2\n"),
    ):
        (source / f"{module}.py").write_text(code)
        near.write_text(f"from twoscale.{module} import value\n")
        digests.append(digest(project))
    assert digests[0] == digests[1] != digests[2]


# Also checks that all Python versions yield the same: run the test with each.
GOLDEN = "b42e6eb9d2bc367f"


def test_the_fingerprint_is_the_same_on_every_python_and_in_every_folder(project):
    assert digest(project) == GOLDEN


@pytest.mark.parametrize("module", ["twoscale.figures.fig9", "twoscale.near.value", "numpy"])
def test_an_unknown_module_is_refused(project, module):
    with pytest.raises(InputError, match=rf"module {module}: found no file in"):
        fingerprint.fingerprint(project / "scripts/job.py", module)


def test_a_criterion_file_counts_with_the_library_modules_that_it_imports(project):
    file = project / "criterion.py"
    file.write_text("import torch, os\nfrom twoscale.inner import deep\nclass Mine: ...\n")
    digests = []
    for edited in (None, "src/twoscale/cousin.py", "criterion.py"):
        if edited:
            (project / edited).write_text((project / edited).read_text() + "added = 1\n")
        digest(project)
        digests.append(fingerprint.criterion_file_fingerprint(str(file), "Mine"))
    assert len(set(digests)) == 3


def test_a_criterion_that_a_file_lacks_is_answered_with_the_nearest_class(tmp_path):
    path = tmp_path / "criterion.py"
    path.write_text(
        "import numpy as mine\nfrom math import pi as mines\nMax = mini = 3\nclass Mined: ...\n"
    )
    for name in ("Mined", "mine", "mines", "Max", "mini"):
        fingerprint.criterion_file_fingerprint(str(path), name)
    with pytest.raises(InputError, match=r"no class 'Mine', expected one \(did you mean Mined\?\)"):
        fingerprint.criterion_file_fingerprint(str(path), "Mine")
    path.write_text("from library import *\n")
    fingerprint.criterion_file_fingerprint(str(path), "Mine")
