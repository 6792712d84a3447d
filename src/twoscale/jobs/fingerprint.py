"""Fingerprint of the code of a rule, independent of comments, docstrings and formatting.

It covers the syntax tree of an entry script and of all library modules that it imports, directly or indirectly, and of
a user's file with an exit criterion the modules of the user that it imports. Snakemake tracks it as a param: an edit
that can change a result reruns the rules that import it, other edits rerun nothing.
"""

import ast
import hashlib
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from twoscale.base import InputError, did_you_mean, first_line

LIBRARY = Path("src", "twoscale")  # relative to the project

# Modules of the library that no fingerprint covers. The values of `config` and the columns of `tables` reach a rule in
# its params. The others handle arguments, messages, processes, files and planning, and determine no number. `json` is
# covered, because the keys of random streams are hashes of canonical JSON.
EXCLUDED = frozenset(
    f"twoscale.{name}"
    for name in (
        *("config", "config.identity", "config.loading", "config.messages", "config.reference", "config.sections"),
        *("tables", "errors", "files", "progress", "training.metrics_log"),
        *("jobs.command", "jobs.environment", "jobs.fingerprint", "jobs.launch", "jobs.machine", "jobs.result_cache"),
        "jobs.rows",
    )
)

EMPTY = "Module()"  # the syntax tree of a module that has at most a docstring
# fields of syntax nodes that hold statements, or nodes that hold statements
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def fingerprint(script: Path, *modules: str) -> str:
    """Hexadecimal digest of `script`, of further modules, and of all library modules that they import.

    Args:
        script: Entry script, in a project whose library is in src/twoscale.
        modules: Dotted names of library modules that the script imports dynamically, such as "twoscale.figures.fig3".

    Raises:
        InputError: if a module does not exist.
    """
    project = _project(script)
    roots = [script]
    for module in modules:
        if not _module_file(project, module):
            raise InputError(f"module {module}: found no file in {project}, expected a module of the library.")
        roots += _files(project, module)
    digest = hashlib.sha256()
    covered = _closure(roots)
    texts = {path: normalised(path) for path in covered}
    texts |= {path: path.read_text(encoding="utf-8") for module in covered for path in _templates(project, module)}
    for path, text in sorted(texts.items()):
        digest.update(f"{path.relative_to(project).as_posix()}\n{text}\n".encode())
    return digest.hexdigest()[:16]


def criterion_file_fingerprint(path: str, name: str) -> str:
    """Hexadecimal digest of a user's file with the exit criterion `name`, and of the modules that it imports.

    They are those of the library and others on the search path of Python, except installed packages.

    Raises:
        InputError: if the file or a module is not Python code, or the file is missing or does not define the name.
    """
    try:
        texts = map(normalised, _users_files(Path(path)))
        digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
        defined = defined_names(_parse(Path(path)))
    except (OSError, SyntaxError, ValueError, MemoryError, RecursionError) as error:  # the parser's stack is small
        raise InputError(
            f"exit criterion file {path}: cannot be read ({first_line(error)}), expected Python code with the "
            "criterion's class."
        ) from error
    if name not in defined and "*" not in defined:
        classes = [known for known in defined if known[:1].isupper()]
        raise InputError(
            f"exit criterion file {path}: found no class {name!r}, expected one{did_you_mean(name, classes)}."
        )
    return digest


def defined_names(tree: ast.Module) -> set[str]:
    """Names that a file may define at its top level, found without running it; "*" for an import of everything."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


# --- from imports to files


def _project(path: Path) -> Path:
    return next(folder for folder in path.parents if (folder / LIBRARY).is_dir())


def _closure(roots: Iterable[Path]) -> set[Path]:
    """The files `roots` and all library files that they import, directly or indirectly."""
    files = set(roots)
    unread = list(files)
    while unread:
        new = set(imported(unread.pop())) - files
        files |= new
        unread += new
    return files


@cache
def imported(path: Path) -> tuple[Path, ...]:
    """Library files that `path` imports, also inside functions, except excluded ones."""
    project = _project(path)
    package = path.parent.relative_to(project).parts[1:]  # without "src"; only relative imports need it
    names = {name for node in _statements(_parse(path)) for name in _imported_names(node, package)}
    return tuple(sorted({file for name in names for file in _files(project, name)}))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and all statements in it, also those inside functions and branches, but no expressions."""
    yield node
    for_annotations = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    for field in ("orelse",) if for_annotations else BLOCKS:
        for child in getattr(node, field, ()):
            yield from _statements(child)


def _imported_names(node: ast.AST, package: tuple[str, ...]) -> Iterator[str]:
    """Dotted names that an import in a module of `package` may load: modules, and names in them that may be modules."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        # `from ..a import b`: two dots are one package up
        parents = package[: len(package) - node.level + 1] if node.level else ()
        module = ".".join([*parents, *filter(None, [node.module])])
        yield from (f"{module}.{alias.name}" for alias in node.names)


def _templates(project: Path, module: Path) -> Iterator[Path]:
    """The templates of pages that a module names in strings, as `twoscale.report.render` takes them."""
    texts = (node.value for node in ast.walk(_parse(module)) if isinstance(node, ast.Constant))
    names = (text for text in texts if isinstance(text, str) and text.endswith(".j2"))
    yield from (path for name in names if (path := project / LIBRARY / name).is_file())


def _files(project: Path, name: str) -> Iterator[Path]:
    """Files that Python executes to import the dotted `name`: __init__.py of each package, and the module itself.

    There are none if the name is outside the library or excluded, and none without a statement. A name that is not a
    module, such as a function, yields the files of the module before it. The package `twoscale` imports its public
    names when they are used, so it counts for `twoscale.open_run` and not for the modules in it.
    """
    parts = name.split(".")
    if parts[0] != LIBRARY.name:
        return
    is_public = len(parts) == 1 or (len(parts) == 2 and not _module_file(project, name))
    for module in (".".join(parts[:end]) for end in range(1 if is_public else 2, len(parts) + 1)):
        file = None if module in EXCLUDED else _module_file(project, module)
        if file and normalised(file) != EMPTY:
            yield file


@cache
def _users_files(file: Path) -> tuple[Path, ...]:
    """A user's file, the user's modules that it imports, directly or indirectly, and the library files of them all."""
    project = _project(Path(__file__))
    library: set[Path] = set()
    modules, unread = {file: ""}, [file]
    while unread:
        path = unread.pop()
        package = modules[path].split(".")[: None if path.stem == "__init__" else -1]
        for name in {name for node in _statements(_parse(path)) for name in _imported_names(node, tuple(package))}:
            library.update(_files(project, name))
            new = {found: module for module, found in _located(name) if found not in modules}
            modules |= new
            unread += new
    return (*sorted(modules, key=modules.__getitem__), *sorted(_closure(library)))


def _located(name: str) -> Iterator[tuple[str, Path]]:
    """A module outside the library and the packages that hold it, with their files; those installed are left out."""
    parts, folders = name.split("."), None
    if parts[0] == LIBRARY.name:
        return
    for module in (".".join(parts[:end]) for end in range(1, len(parts) + 1)):
        spec = PathFinder.find_spec(module, folders)
        if spec is None or _is_installed(spec.origin):
            return
        if spec.origin is not None and spec.origin.endswith(".py"):
            yield module, Path(spec.origin)
        folders = spec.submodule_search_locations
        if folders is None:
            return


def _is_installed(origin: str | None) -> bool:
    """Whether a module is part of Python or of an installed package, whose version the environment fixes."""
    if origin is None:
        return False
    folders = {"site-packages", "dist-packages"}
    return bool(folders & set(Path(origin).parts)) or Path(origin).is_relative_to(sysconfig.get_path("stdlib"))


@cache
def _module_file(project: Path, name: str) -> Path | None:
    """The file of a module, or the __init__.py of a package; None if there is neither."""
    path = project.joinpath(LIBRARY.parent, *name.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


# --- from files to text


@cache
def normalised(path: Path) -> str:
    """The syntax tree of a file as text, without docstrings and positions.

    Fields that are empty or None are omitted, so the text is the same on Python versions that add an optional field to
    a node.
    """
    return _dump(_without_docstrings(_parse(path)))


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes(), filename=str(path))


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in _statements(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return tree


def _dump(node: object) -> str:
    if isinstance(node, ast.AST):
        fields = [(name, getattr(node, name, None)) for name in node._fields]
        text = ",".join([f"{name}={_dump(value)}" for name, value in fields if value is not None and value != []])
        return f"{type(node).__name__}({text})"
    if isinstance(node, list):
        return f"[{','.join(map(_dump, node))}]"
    return repr(node)
