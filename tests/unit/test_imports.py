"""The floors of the library: which module may import which, and what may be imported without torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "twoscale"

# Lowest first. A module imports from its own floor and from those before it.
FLOORS = [
    {
        *("escaping", "errors", "files", "canonical", "json", "progress", "rng", "tables", "fingerprint", "gpu_lease"),
        *("kept", "machine", "launch"),
    },
    {"config"},
    {"data"},
    {"model"},
    {"training"},
    {"dynamics"},
    {"exits"},
    {"analysis"},
    {"export"},
    {"figures"},
    {"workflow", "recorded_run", "job_errors"},
    {"preflight"},
    {"gpu"},
    {"command"},
]
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}
WITHOUT_TORCH = [
    "config",
    "tables",
    "analysis",
    "figures",
    "workflow",
    "preflight",
    "fingerprint",
    "kept",
    "job_errors",
]


def modules() -> dict[str, Path]:
    """Dotted name below `twoscale` -> file; packages are named like their folder."""
    names = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports_of(name: str, known: dict[str, Path]) -> set[str]:
    """Modules of the library that a module imports anywhere, also inside functions, but not for annotations only."""
    found = set()
    tree = ast.parse(known[name].read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # `from twoscale.config import ModelConfig` imports a module, `from twoscale.model import noise` two
            targets = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        below = (target.removeprefix("twoscale.") for target in targets if target.startswith("twoscale."))
        found |= {target for target in below if target in known}
    return found - {name}


KNOWN = modules()
ARROWS = {name: imports_of(name, KNOWN) for name in KNOWN}


def floor(name: str) -> int:
    return LEVEL[name.partition(".")[0]]


def test_every_module_is_on_a_floor():
    assert {name.partition(".")[0] for name in KNOWN if name} == set(LEVEL)


def test_no_module_imports_from_a_floor_above_its_own():
    upward = [(name, target) for name in KNOWN if name for target in ARROWS[name] if floor(target) > floor(name)]
    assert upward == []


def test_no_modules_import_one_another_in_a_circle():
    """Removes modules that import nothing more, until none is left or a circle remains."""
    # a package imports its own modules to offer their names; what they import of it is the module itself
    open_arrows = {name: {t for t in targets if not name.startswith(f"{t}.")} for name, targets in ARROWS.items()}
    while free := [name for name, targets in open_arrows.items() if not targets]:
        for name in free:
            del open_arrows[name]
        open_arrows = {name: targets - set(free) for name, targets in open_arrows.items()}
    assert open_arrows == {}


def test_planning_reads_a_published_folder_without_torch():
    code = "import sys, twoscale.model.published.folder; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("package", WITHOUT_TORCH)
def test_a_package_without_torch_imports_none(package):
    names = [f"twoscale.{name}" for name in KNOWN if name == package or name.startswith(f"{package}.")]
    code = f"import sys, {', '.join(names)}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
