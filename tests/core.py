"""How much of the library the five figures and the claims stand on: modules and lines inside and outside.

    python -m tests.core

A module is inside if a job of these targets imports it, directly or indirectly, also inside a function.
"""

import ast
from collections import defaultdict

from tests.small import ROOT
from tests.unit.test_imports import KNOWN, arrows
from twoscale.workflow.core import JOBS

# Scripts of jobs behind the five figures and the claims that are no rows, and functions that rules name.
SCRIPTS = (
    *("prepare_text", "train_tokenizer", "fetch_gpt2", "tokenize_text", "join_tokens", "init_model", "train_segment"),
    *("measure", "call", "draw"),
)
FUNCTIONS = tuple(f"figures.fig{n}.draw" for n in range(1, 6))
BESIDES = {"write_overview", "write_runtimes", "take_snapshot"}  # rows for the report and releases


def inside() -> set[str]:
    """Dotted names below `twoscale`."""
    functions = [*FUNCTIONS, *(job.function.removeprefix("twoscale.") for job in JOBS if job.name not in BESIDES)]
    unread = {function.rpartition(".")[0] for function in functions}
    for script in SCRIPTS:
        tree = ast.parse((ROOT / "scripts" / f"{script}.py").read_text())
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        names = {name for node in imports for name in (node.module, *(f"{node.module}.{a.name}" for a in node.names))}
        unread |= {name.removeprefix("twoscale.") for name in names} & KNOWN.keys()
    found = set(unread)
    while unread:
        new = arrows()[unread.pop()] - found
        found |= new
        unread |= new
    return found


def lines(modules: set[str]) -> int:
    return sum(len(KNOWN[module].read_text().splitlines()) for module in modules)


def main() -> None:
    core = inside()
    outside = KNOWN.keys() - core
    print(f"inside: {len(core)} modules, {lines(core)} lines; outside: {len(outside)} modules, {lines(outside)} lines")
    rooms = defaultdict(list)
    for module in sorted(outside):
        room, _, name = module.rpartition(".")
        rooms[room].append(name)
    for room, names in rooms.items():
        print(f"  {room or 'twoscale'}: {', '.join(names)}")


if __name__ == "__main__":
    main()
