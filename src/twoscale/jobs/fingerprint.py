"""Fingerprint of the code of a rule, independent of comments, docstrings, formatting and the names
of modules.

It covers an entry script, all library modules that it imports, directly or indirectly, and the
templates of their pages. Snakemake tracks it as a param, so only an edit that can change a result
reruns the rules that import it.
"""

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from twoscale.base import InputError, did_you_mean, first_line

SOURCE = Path(__file__).parents[2]  # the folder of the library

# Modules of the library that are covered only where a job's function is in them. The values of
# `config` and the columns of `tables` reach a rule in its params. The others handle files,
# messages, processes and planning, and determine no number. The module `study` of a study is
# covered where a measurement or a drawing imports it.
EXCLUDED = re.compile(
    r"twoscale|twoscale\.(base|tables|config(?!\.(definitions|criteria)$).*|jobs.*|workflow.*"
    r"|figures\.catalogue|training\.metrics_log)"
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def fingerprint(script: Path, *modules: str) -> str:
    """Hexadecimal digest of an entry script, of all library modules that it imports, and of further
    `modules`.

    These it imports by their names, such as "twoscale.figures.fig3".
    """
    roots = [script]
    for module in modules:
        if (file := _module_file(module)) is None:
            raise InputError(
                f"module {module}: found no file in {SOURCE}, expected a module of the library."
            )
        roots.append(file)
    return _digest(covered(roots))


def criterion_file_fingerprint(path: str, name: str) -> str:
    """Digest of a user's file with the exit criterion `name`, and of the library modules that it
    imports.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        tree = ast.parse(text, filename=path)
        digest = _digest(covered([Path(path)]))
    except (OSError, SyntaxError, ValueError, MemoryError, RecursionError) as error:
        # the last two: the parser's stack is small
        raise InputError(
            f"exit criterion file {path}: cannot be read ({first_line(error)}), expected Python"
            " code with the criterion's class."
        ) from error
    # a class, or a name that the file assigns or imports
    if not re.search(rf"\b{re.escape(name)}\b|import \*", text):
        classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        expected = f"one{did_you_mean(name, classes)}"
        raise InputError(
            f"exit criterion file {path}: found no class {name!r}, expected {expected}."
        )
    return digest


def covered(roots: Iterable[Path]) -> list[Path]:
    """The files `roots` and all library files that they import, also inside functions, except
    excluded ones.
    """
    found = dict.fromkeys(roots)
    unread = list(found)
    while unread:
        imported = (file for _, files in _read(unread.pop()).imports for file in files)
        new = dict.fromkeys(file for file in imported if file not in found)
        found |= new
        unread += new
    return list(found)


def _module_file(name: str) -> Path | None:
    """The file of a module, or the __init__.py of a package; None if there is neither in the
    library.
    """
    path = SOURCE.joinpath(*name.split("."))
    return next(
        (file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None
    )


@cache
def normalised(path: Path) -> str:
    """The code of a file as text, without docstrings, positions and imports for the type checker.

    An import from the library is the imported name and the code of its module: a module can move,
    but not be exchanged. The templates of pages that the file names in strings follow
    (`twoscale.report.render`).
    """
    code = _read(path)
    # sorted, because the order of imports changes no result
    names = sorted(
        f"{name} {_sha256(''.join(_read(file).text for file in files))}"
        for name, files in code.imports
    )
    templates = [SOURCE / "twoscale" / name for name in sorted(code.templates)]
    pages = [template.read_text(encoding="utf-8") for template in templates if template.is_file()]
    return "\n".join([code.text, *names, *pages])


def _digest(files: Iterable[Path]) -> str:
    return _sha256("\n".join(sorted(map(normalised, files))))[:16]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class _Code:
    """The code of a file in one pass over its syntax tree.

    Attributes:
        imports: Each name from the library, with the files that Python runs for it, except excluded
            ones.
        templates: Strings that may name templates.
        text: The rest, without docstrings and what is only for the type checker.
    """

    imports: list[tuple[str, list[Path]]] = field(default_factory=list)
    templates: set[str] = field(default_factory=set)
    text: str = ""

    def dump(self, node: object) -> str:
        """Like `ast.dump`, without empty fields, which differ between versions."""
        if isinstance(node, ast.AST):
            fields = []
            for name, value in ast.iter_fields(node):
                if name == "body" and isinstance(node, _DOCUMENTED):
                    value = _without_docstring(value)
                if value is not None and value != []:
                    fields.append(f"{name}={self.dump(value)}")
            return f"{type(node).__name__}({','.join(fields)})"
        if isinstance(node, list):
            return f"[{','.join(map(self.dump, self._kept(node)))}]"
        if isinstance(node, str) and node.endswith(".j2"):
            self.templates.add(node)
        return repr(node)

    def _kept(self, nodes: list) -> Iterator[object]:
        """The nodes of a list without imports from the library, which are noted, and without
        imports for types.
        """
        for node in nodes:
            if (
                isinstance(node, ast.If)
                and isinstance(node.test, ast.Name)
                and node.test.id == "TYPE_CHECKING"
            ):
                yield from self._kept(node.orelse)  # what runs
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("twoscale"):
                self._note(node.names, node.module or "")
            elif isinstance(node, ast.Import) and any(
                alias.name.startswith("twoscale") for alias in node.names
            ):
                self._note(node.names)
            else:
                yield node

    def _note(self, names: Iterable[ast.alias], *module: str) -> None:
        # `from twoscale.model import noise` imports a module, `from twoscale.model.noise import
        # draw` a name in one
        for alias in names:
            modules = [
                name
                for name in (*module, ".".join([*module, alias.name]))
                if not EXCLUDED.fullmatch(name)
            ]
            files = [file for file in map(_module_file, modules) if file is not None]
            self.imports.append((f"{alias.name} {alias.asname}", files))


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(ast.Constant(str())), *rest]:
            return rest
    return body


@cache
def _read(path: Path) -> _Code:
    code = _Code()
    code.text = code.dump(ast.parse(path.read_bytes(), filename=str(path)))
    return code
