"""Mutants of a module: its source with one small fault each.

The faults are those that tests should notice: another comparison, arithmetic operator, condition or constant, a missing
`raise` or call, two swapped arguments, `break` for `continue`. Annotations, decorators, docstrings and the words of
error messages are left alone.
"""

import ast
import copy
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
SYMMETRIC = {"max", "min", "np.hypot"}
# fields of a node that no fault is planted in
SKIPPED = {"annotation", "returns", "decorator_list", "type_params", "bases", "exc"}


@dataclass(frozen=True)
class Mutant:
    """One fault: the function that it is in, the lines before and after it in one line each, and the whole source."""

    function: str
    line: int
    before: str
    after: str
    source: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What names the mutant in the list of equivalent ones; it survives edits of other lines."""
        return self.function, self.before, self.after


def mutants(source: str) -> list[Mutant]:
    """All mutants of a module, each once, in the order of the source; a few may be no Python."""
    found = (
        _mutant(source, function, node, changed)
        for function, node in _nodes(ast.parse(source), ())
        for changed in chain(_expressions(node), _statements(node))
    )
    return list({mutant.key: mutant for mutant in found}.values())


def sample(source: str, count: int, seed: str) -> list[Mutant]:
    """`count` mutants of a module, or all if there are fewer, drawn with `seed`; in the order of the source."""
    shuffled = mutants(source)
    random.Random(seed).shuffle(shuffled)
    return sorted(islice(filter(_is_python, shuffled), count), key=lambda mutant: mutant.line)


def _is_python(mutant: Mutant) -> bool:
    try:
        compile(mutant.source, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def equivalent(page: Path, module: str) -> set[tuple[str, str, str]]:
    """The keys that the page of equivalent mutants lists under the heading of this module."""
    sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    text = next((section for section in sections if section.startswith(f"`{module}`")), "")
    return set(re.findall(r"^- `(.+?)`: `(.+?)` → `(.+?)`: ", text, flags=re.MULTILINE))


def _nodes(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, ast.AST]]:
    """Every node that may be changed, with the qualified name of its function."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        names = (*names, node.name)
    yield ".".join(names) or "module", node
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return  # a guard against faults of ours, which no test can reach
    for field, value in ast.iter_fields(node):
        if field not in SKIPPED and not isinstance(node, ast.JoinedStr):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _nodes(child, names)


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[op, *_]) if type(op) in COMPARISONS:
            yield _with(node, ops=[COMPARISONS[type(op)](), *node.ops[1:]])
        case ast.BinOp(op=op) if type(op) in ARITHMETIC and not _is_text(node):
            yield _with(node, op=ARITHMETIC[type(op)]())
        case ast.BoolOp(op=op):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.IfExp(test=test):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield from (ast.Constant(node.value + 1), ast.Constant(node.value - 1))
        case ast.Constant(value=float()):
            yield ast.Constant(2 * node.value if node.value else 1.0)
        case ast.Call(func=func, args=[first, second, *rest]) if not {type(first), type(second)} & {ast.Starred}:
            if ast.unparse(func) in SYMMETRIC:
                return
            yield _with(node, args=[second, first, *rest])


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Raise() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case ast.AugAssign(op=op) if type(op) in ARITHMETIC:
            yield _with(node, op=ARITHMETIC[type(op)]())


def _with(node: ast.AST, **fields) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_text(node: ast.BinOp) -> bool:
    """Whether an operand is a string, whose `+` and `%` cannot be exchanged for another operator."""
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def _mutant(source: str, function: str, node: ast.AST, changed: ast.AST) -> Mutant:
    """The source with `changed` in place of `node`."""
    text = ast.unparse(changed)
    if (isinstance(changed, ast.expr) and not isinstance(changed, ast.Constant)) or text.startswith("-"):
        text = f"({text})"
    lines = source.splitlines(keepends=True)
    first, last = node.lineno - 1, node.end_lineno - 1
    head = lines[first].encode()[: node.col_offset].decode()
    tail = lines[last].encode()[node.end_col_offset :].decode()
    before, after = "".join(lines[first : last + 1]), head + text + tail
    mutated = "".join([*lines[:first], after, *lines[last + 1 :]])
    return Mutant(function, node.lineno, _one_line(before), _one_line(after), mutated)


def _one_line(text: str) -> str:
    return " ".join(text.split("  #")[0].split())
