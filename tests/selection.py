"""Which test files a change can touch, by imports: `make test SINCE=main`.

A file with tests is left out only if nothing that it reads has changed since the revision: no module
of the library or of the tests that it imports, directly or not, and none that it starts in another
process. A change of any other file than a module or a page of documentation runs everything.
"""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
# A test that names one of these may start any module of the library in another process.
STARTS = re.compile(r"snakemake|scripts/|subprocess|sys\.executable|spawn|\bfinished\b|\bfresh\b")
# Read for every test, and starting nothing.
OF_ALL = {ROOT / "tests" / name for name in ("__init__.py", "conftest.py", "selection.py")}
READS_PAGES = re.compile(r"docs|\.md\b|README")


def changed_since(revision: str) -> set[Path]:
    """Tracked files that differ from a revision, and files that are not tracked yet."""
    commands = (
        ["git", "diff", "--name-only", "--no-renames", f"{revision}..."],
        ["git", "diff", "--name-only", "--no-renames", "HEAD"],
        ["git", "ls-files", "--others", "--exclude-standard"],
    )
    lines = [
        subprocess.check_output(command, cwd=ROOT, text=True).splitlines() for command in commands
    ]
    return {ROOT / name for names in lines for name in names}


def is_touched(test: Path, changed: set[Path]) -> bool:
    """Whether a file with tests can have another result after these files have changed."""
    code = {path for path in changed if path.suffix == ".py" and _is_module(path)}
    pages = {path for path in changed if path.suffix == ".md"}
    if changed - code - pages:
        return True
    read = _closure(test)
    helpers = {path for path in read if _is_test(path)} - OF_ALL
    text = "\n".join(path.read_text(encoding="utf-8") for path in helpers)
    if code and STARTS.search(text):
        return True
    if pages and READS_PAGES.search(text):
        return True
    return bool(read & code)


def _is_module(path: Path) -> bool:
    return _is_test(path) or path.is_relative_to(ROOT / "src" / "twoscale")


def _is_test(path: Path) -> bool:
    return path.is_relative_to(ROOT / "tests")


def _closure(test: Path) -> frozenset[Path]:
    """The file, the conftest files that pytest reads for it, and all that these import."""
    found: set[Path] = set()
    unread = {test, *(folder / "conftest.py" for folder in test.parents if _is_test(folder))}
    while unread:
        path = unread.pop()
        if path.is_file() and path not in found:
            found.add(path)
            unread |= _imports(path)
    return frozenset(found)


NAME = re.compile(r"^(?:twoscale|tests)(?:\.\w+)+$")  # a module or function that is called by name
LIBRARY = ROOT / "src" / "twoscale" / "__init__.py"
PUBLIC = set(re.findall(r"twoscale\.[\w.]+", LIBRARY.read_text(encoding="utf-8")))


@cache
def _imports(path: Path) -> frozenset[Path]:
    """Files of modules of the library and of the tests that a file imports, or calls by name."""
    if path == LIBRARY:
        return frozenset()  # it imports its public names on first use
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(NAME.findall(node.value))
    if "twoscale" in names:
        names |= PUBLIC
    return frozenset(file for name in names for file in _files(name))


def _files(name: str) -> list[Path]:
    """The files of a dotted name and of its packages, which Python runs first."""
    parts = name.split(".")
    base = ROOT / "src" if parts[0] == "twoscale" else ROOT
    folders = [base.joinpath(*parts[:length]) for length in range(1, len(parts) + 1)]
    candidates = [
        path for folder in folders for path in (folder.with_suffix(".py"), folder / "__init__.py")
    ]
    return [path for path in candidates if path.is_file()]
