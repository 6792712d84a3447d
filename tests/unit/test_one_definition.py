"""What every engine, study and page counts in one place: loop steps, patience and exits."""

import ast
from collections.abc import Iterator

import pytest

from tests.small import ROOT

SOURCE = ROOT / "src" / "twoscale"


def calls(node: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.Call]]:
    """(name of the innermost function, call) for each call."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield inside, child
        yield from calls(child, child.name if isinstance(child, ast.FunctionDef) else inside)


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


CALLS = [
    (f"{path.relative_to(SOURCE).with_suffix('')}.{function}", call)
    for path in SOURCE.rglob("*.py")
    for function, call in calls(ast.parse(path.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize(
    ("name", "callers"),
    [
        # of all tokens; of those that still loop; in a captured graph
        ("add_noise", "model/interface.step exits/parallel.loop exits/captured_loops.recur"),
        # of one token; of those that still loop; on known states; of the signals of a recording
        (
            "Patience",
            "exits/contract.first_exit exits/parallel.loop exits/contract.__init__"
            " replay/rules.exit_steps",
        ),
        # states at hand; states that are decoded one after another
        ("ExitCounter", "exits/contract.frozen_exits recorder/recorder._decoded"),
        # by users too: `twoscale.exits.contract.frozen_exits` is documented
        ("frozen_exits", "exits/passes.exits"),
    ],
)
def test_it_is_called_by_these_functions_alone(name, callers):
    assert {caller for caller, call in CALLS if called(call) == name} == {*callers.split()}


def test_patience_is_compared_by_no_engine():
    compared = [
        path.name
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare) and "patience" in ast.unparse(node)
    ]
    assert sorted(compared) == ["contract.py", "rules.py"]  # a class of the user; a label
