"""A fingerprint of the code behind a rule, blind to comments, docstrings and formatting.

It covers the syntax tree of an entry script and of every library module that it imports, directly or not.
Snakemake tracks it as a param, so an edit that can change a result reruns the rules that import it, and an
edit that cannot reruns nothing.
"""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from twoscale.errors import InputError, first_line

PACKAGE = "twoscale"

# Modules left out. What `settings` and `tables` say reaches a rule as values in its params; the others move
# arguments, messages and bytes about and decide no number.
LEFT_OUT = frozenset({"settings", "tables", "command", "progress", "errors", "files"})

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def fingerprint(script: Path) -> str:
    """Hexadecimal digest of `script` and of the modules it imports from the package beside it."""
    digest = hashlib.sha256()
    for path in sorted({script, *_closure(script)}):
        digest.update(f"{path.relative_to(script.parent)}\n{normalised(path)}\n".encode())
    return digest.hexdigest()[:16]


def of_criterion_file(path: str) -> str:
    """Hexadecimal digest of a file with an exit rule of the user; one that is not Python code is an InputError."""
    try:
        return hashlib.sha256(normalised(Path(path)).encode()).hexdigest()[:16]
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(
            f"exit rule file {path}: cannot be read ({first_line(error)}), expected Python code with the rule's class."
        ) from error


@cache
def normalised(path: Path) -> str:
    """The syntax tree of a file as text, without docstrings and positions.

    Fields that are empty or None are not written, so the text is the same on Python versions that add an
    optional field to a node.
    """
    return _dump(_without_docstrings(_parse(path)))


def _closure(script: Path) -> set[Path]:
    found: set[Path] = set()
    todo = [script]
    while todo:
        for path in imported(todo.pop()):
            if path not in found:
                found.add(path)
                todo.append(path)
    return found


@cache
def imported(path: Path) -> tuple[Path, ...]:
    """Files of the package that `path` imports anywhere, also inside functions."""
    scripts = next(folder for folder in path.parents if (folder / PACKAGE).is_dir())
    names = {name for node in ast.walk(_parse(path)) for name in _imported_names(node)}
    files = []
    for name in sorted(names):
        parts = name.split(".")
        if parts[0] != PACKAGE or (len(parts) > 1 and parts[1] in LEFT_OUT):
            continue
        file = scripts.joinpath(*parts).with_suffix(".py")
        if file.is_file():  # else the name is a package, or a function of a module that is listed too
            files.append(file)
    return tuple(files)


def _imported_names(node: ast.AST) -> Iterator[str]:
    """Dotted names that a node may import: modules, and names in them that may be modules."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes(), filename=str(path))


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return tree


def _dump(node: object) -> str:
    if isinstance(node, ast.AST):
        fields = ((name, getattr(node, name, None)) for name in node._fields)
        kept = ",".join(f"{name}={_dump(value)}" for name, value in fields if value not in (None, []))
        return f"{type(node).__name__}({kept})"
    if isinstance(node, list):
        return f"[{','.join(map(_dump, node))}]"
    return repr(node)
