"""Fingerprint of the code of a rule, independent of comments, docstrings, formatting and the names of modules.

It covers an entry script, all library modules that it imports, directly or indirectly, and the templates of their
pages. Snakemake tracks it as a param, so only an edit that can change a result reruns the rules that import it.
"""

import ast
import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TypeGuard

from twoscale.base import InputError, did_you_mean, first_line

SOURCE = Path(__file__).parents[2]  # the folder of the library

# Modules of the library that are covered only where a job's function is in them. The values of `config` and the columns
# of `tables` reach a rule in its params. The others handle files, messages, processes and planning, and determine no
# number.
EXCLUDED = re.compile(
    r"twoscale|twoscale\.(base|tables|config(?!\.definitions$).*|jobs.*|workflow.*|figures\.catalogue"
    r"|studies\.\w+\.study|training\.metrics_log)"
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def fingerprint(script: Path, *modules: str) -> str:
    """Hexadecimal digest of an entry script, of all library modules that it imports, and of further `modules`.

    These it imports by their names, such as "twoscale.figures.fig3".
    """
    roots = [script]
    for module in modules:
        if (file := module_file(module)) is None:
            raise InputError(f"module {module}: found no file in {SOURCE}, expected a module of the library.")
        roots.append(file)
    return _digest(covered(roots))


def criterion_file_fingerprint(path: str, name: str) -> str:
    """Digest of a user's file with the exit criterion `name`, and of the library modules that it imports."""
    try:
        digest = _digest(covered([Path(path)]))
        tree = _parsed(Path(path))
    except (OSError, SyntaxError, ValueError, MemoryError, RecursionError) as error:  # the parser's stack is small
        expected = "Python code with the criterion's class"
        raise InputError(
            f"exit criterion file {path}: cannot be read ({first_line(error)}), expected {expected}."
        ) from error
    nodes = [*ast.walk(tree)]
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    others = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    imported = {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    if name not in {*classes, *others, *imported} and "*" not in imported:
        expected = f"one{did_you_mean(name, classes)}"
        raise InputError(f"exit criterion file {path}: found no class {name!r}, expected {expected}.")
    return digest


def covered(roots: Iterable[Path]) -> list[Path]:
    """The files `roots` and all library files that they import, also inside functions, except excluded ones."""
    found = dict.fromkeys(roots)
    unread = list(found)
    while unread:
        imported = (file for _, files in _library_imports(unread.pop()) for file in files)
        new = dict.fromkeys(file for file in imported if file not in found)
        found |= new
        unread += new
    return list(found)


def module_file(name: str) -> Path | None:
    """The file of a module, or the __init__.py of a package; None if there is neither in the library."""
    path = SOURCE.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def normalised(path: Path) -> str:
    """The code of a file as text, without docstrings, positions and imports for the type checker.

    An import from the library is the imported name and the code of its module: a module can move, but not be exchanged.
    The templates of pages that the file names in strings follow (`twoscale.report.render`).
    """
    names = sorted(f"{name} {_sha256(''.join(map(_code, files)))}" for name, files in _library_imports(path))
    texts = (str(node.value) for node in ast.walk(_parsed(path)) if isinstance(node, ast.Constant))
    templates = [SOURCE / "twoscale" / text for text in texts if text.endswith(".j2")]
    pages = [template.read_text(encoding="utf-8") for template in templates if template.is_file()]
    return "\n".join([_code(path), *names, *pages])  # the code without imports of the library


def _digest(files: Iterable[Path]) -> str:
    return _sha256("\n".join(sorted(map(normalised, files))))[:16]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _library_imports(path: Path) -> list[tuple[str, list[Path]]]:
    """Each name that a file imports from the library, with the files that Python runs for it, except excluded ones."""
    found = []
    for node in filter(_is_of_library, ast.walk(_parsed(path))):
        # `from twoscale.model import noise` imports a module, `from twoscale.model.noise import draw` a name in one
        module = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for alias in node.names:
            modules = [*module, ".".join([*module, alias.name])]
            files = [module_file(name) for name in modules if not EXCLUDED.fullmatch(name)]
            found.append((f"{alias.name} {alias.asname}", [file for file in files if file is not None]))
    return found


def _is_of_library(node: object) -> TypeGuard[ast.Import | ast.ImportFrom]:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").startswith("twoscale")
    return isinstance(node, ast.Import) and any(alias.name.startswith("twoscale") for alias in node.names)


@cache
def _code(path: Path) -> str:
    return _dump(_parsed(path))


class _Normalise(ast.NodeTransformer):
    """Removes docstrings, and what is only for the type checker."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
        return node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        return node.orelse if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" else node


@cache
def _parsed(path: Path) -> ast.Module:
    return _Normalise().visit(ast.parse(path.read_bytes(), filename=str(path)))


def _dump(node: object) -> str:
    """Like `ast.dump`, without imports from the library, and without empty fields, which differ between versions."""
    if isinstance(node, ast.AST):
        fields = [(name, getattr(node, name, None)) for name in node._fields]
        text = ",".join([f"{name}={_dump(value)}" for name, value in fields if value is not None and value != []])
        return f"{type(node).__name__}({text})"
    if isinstance(node, list):
        return f"[{','.join(_dump(child) for child in node if not _is_of_library(child))}]"
    return repr(node)
