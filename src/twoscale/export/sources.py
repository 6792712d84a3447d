"""Modules of the library as one file, so that a released model needs no other package than torch and transformers.

Each module is copied as it is, lowest first, without its imports and with its docstring as a comment. So it may import
only names (`from twoscale.rng import stream`, not `from twoscale import rng`), and no name may be defined twice. What
`twoscale.config` offers comes from `twoscale.export.plain_config`.
"""

import ast
import builtins
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

LIBRARY = Path(__file__).parents[2]
MODELING = "twoscale.export.modeling"
REPLACED = {"twoscale.config": "twoscale.export.plain_config"}

HEADER = '''\
"""A looped language model of the library twoscale for the transformers library.

Generated from modules of the library, which follow in the order of their imports; the last one has the classes that
transformers loads. Changes belong into the library.
"""

from __future__ import annotations

'''


Import = tuple[str, str, str]


@dataclass(frozen=True)
class Module:
    """A module of the library.

    Attributes:
        name: Its dotted name.
        docstring: Its docstring.
        body: Its text behind the docstring, without imports at the top level.
        imports: Imports from other packages as (module, name, name here); without a name the module itself.
        needs: Module of the library -> names that are imported from it.
        names: Names that its top level defines.
    """

    name: str
    docstring: str
    body: str
    imports: tuple[Import, ...]
    needs: Mapping[str, tuple[str, ...]]
    names: tuple[str, ...]


def one_file(name: str = MODELING, library: Path = LIBRARY) -> str:
    """The module `name` and all modules of the library that it imports as one Python file.

    Args:
        name: Dotted name of the module.
        library: The folder that holds the package.

    Raises:
        ValueError: if a module cannot be part of one file; the sentence says why.
    """
    modules = _in_order(name, library)
    _check_names(modules)
    return HEADER + "\n".join([*_import_lines(modules), *map(_section, modules)])


def read_module(name: str, library: Path = LIBRARY) -> Module:
    """A module from its file."""
    path = library.joinpath(*name.split(".")).with_suffix(".py")
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    docstring, *rest = tree.body
    imports: list[Import] = []
    needs: dict[str, tuple[str, ...]] = {}
    names: list[str] = []
    lines[: docstring.end_lineno] = [""] * docstring.end_lineno
    for node in rest:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            names += _defined(name, node)
            continue
        lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
        source = getattr(node, "module", None) or ""
        if source.partition(".")[0] == "twoscale":
            source = REPLACED.get(source, source)
            needs[source] = (*needs.get(source, ()), *_imported(name, node, library))
        elif source != "__future__":
            pairs = [(source, alias.name) if source else (alias.name, "") for alias in node.names]
            imports += [(*pair, alias.asname or alias.name) for pair, alias in zip(pairs, node.names, strict=True)]
    for node in ast.walk(ast.Module(rest, [])):
        if node not in rest and isinstance(node, ast.Import | ast.ImportFrom) and "twoscale" in ast.unparse(node):
            raise ValueError(f"{name}, line {node.lineno}: found an import in a function, expected it at the top.")
    body = "".join(lines).strip()
    return Module(name, ast.get_docstring(tree), body, tuple(imports), needs, tuple(names))


def _imported(name: str, node: ast.ImportFrom, library: Path) -> Iterator[str]:
    """The names of an import from the library."""
    for alias in node.names:
        is_module = library.joinpath(*node.module.split("."), f"{alias.name}.py").is_file()
        if is_module or alias.asname or alias.name == "*":
            raise ValueError(
                f"{name}, line {node.lineno}: found `{ast.unparse(node)}`, expected imports of names under these names."
            )
        yield alias.name


def _defined(name: str, node: ast.stmt) -> Iterator[str]:
    """Names that a statement of the top level defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
    else:
        raise ValueError(
            f"{name}, line {node.lineno}: found `{ast.unparse(node)}`, expected only definitions and imports."
        )


def _in_order(name: str, library: Path) -> list[Module]:
    """The module and those that it imports, each behind the ones that it needs itself."""
    done: dict[str, Module] = {}

    def add(wanted: str) -> None:
        if wanted not in done:
            module = read_module(wanted, library)
            for needed in module.needs:
                add(needed)
            done[wanted] = module

    add(name)
    return list(done.values())


def _check_names(modules: list[Module]) -> None:
    """Refuse a name that has two meanings in one file, and the import of a name that no module defines."""
    owners: dict[str, str] = {}
    for module in modules:
        for name in module.names:
            if name in owners and owners[name] != module.name and name != "__all__":
                raise ValueError(f"{module.name}: found the name {name} of {owners[name]} again, expected another.")
            if hasattr(builtins, name):
                raise ValueError(f"{module.name}: found the name {name} of a built-in function, expected another.")
            owners[name] = module.name
    external: dict[str, Import] = {}
    for module in modules:
        for found in module.imports:
            name = found[-1]
            if name in owners or external.setdefault(name, found) != found:
                raise ValueError(f"{module.name}: found the imported name {name} with another meaning, expected one.")
    for module in modules:
        for source, names in module.needs.items():
            for name in names:
                if name not in owners:
                    raise ValueError(f"{module.name}: found no {name} of {source} in the file, expected it there.")


def _import_lines(modules: list[Module]) -> Iterator[str]:
    """The imports from other packages: those of the standard library first, and one line for each module."""
    found = {one for module in modules for one in module.imports}
    for is_ours in (True, False):
        group = {one for one in found if (one[0].partition(".")[0] in sys.stdlib_module_names) == is_ours}
        for module, name, here in sorted(group):
            if not name:
                yield f"import {module}" + (f" as {here}" if here != module else "")
        for module in sorted({module for module, name, _ in group if name}):
            names = sorted((n, h) for m, n, h in group if m == module and n)
            yield f"from {module} import {', '.join(n if n == h else f'{n} as {h}' for n, h in names)}"
        yield ""


def _section(module: Module) -> str:
    """A module as a part of the file."""
    rule = f"# --- {module.name} ".ljust(119, "-")
    comment = "\n".join(f"# {line}".rstrip() for line in module.docstring.splitlines())
    return f"\n{rule}\n#\n{comment}\n\n\n{module.body}\n"
