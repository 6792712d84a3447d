"""What the columns of a table mean: the comments beside them in `twoscale.tables`."""

import ast
import inspect
import io
import tokenize
from functools import cache

from twoscale import tables


def meanings(table: str) -> dict[str, str]:
    """Column -> its meaning and unit, for the columns of `table` that have one.

    A column without a comment in its own table means what it means in the first table that has one.
    """
    comments = _comments()
    of_any = {}
    for (_, column), text in comments.items():
        of_any.setdefault(column, text)
    found = {column: comments.get((table, column), of_any.get(column)) for column in tables.columns(table)}
    return {column: text for column, text in found.items() if text}


@cache
def _comments() -> dict[tuple[str, str], str]:
    """(Table or name of a dictionary, column) -> comment, in the order of the lines."""
    source = inspect.getsource(tables)
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {token.start[0]: token.string.lstrip("# ") for token in found if token.type == tokenize.COMMENT}
    return {
        (table, key.value): lines[key.lineno]
        for table, columns in _dictionaries(ast.parse(source))
        for key in columns.keys
        if isinstance(key, ast.Constant) and key.lineno in lines
    }


def _dictionaries(tree: ast.Module) -> list[tuple[str, ast.Dict]]:
    """The dictionaries of columns by name: those of all tables, and those that are variables."""
    found = []
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Dict):
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        found.append((ast.unparse(target), node.value))
        inner = zip(node.value.keys, node.value.values, strict=True)
        found += [(key.value, value) for key, value in inner if isinstance(value, ast.Dict)]
    return found
