"""The floors of the library: which module may import which, and what may be imported without heavy libraries."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "twoscale"

# Lowest first. A module imports from its own floor and from those before it.
FLOORS = [
    {"base", "rng", "tables"},
    {"config"},
    {"jobs"},
    {"data"},
    {"model"},
    {"training"},
    {"dynamics"},
    {"exits"},
    {"claims"},
    {"figures"},
    {"report"},
    {"studies"},
    {"recorder"},
    {"export"},
    {"workflow"},
]
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}
WITHOUT_TORCH = ["claims", "figures", "report", "workflow"]
# Planning needs Snakemake with its requirements only.
HEAVY = ("torch", "numpy", "pandas", "pyarrow", "safetensors", "tokenizers", "datasets", "matplotlib", "tqdm")
LIGHT = ["base", "rng", "tables", "config", "jobs", "workflow"]


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


@cache
def arrows() -> dict[str, set[str]]:
    """Module -> the modules that it imports."""
    return {name: imports_of(name, KNOWN) for name in KNOWN}


def floor(name: str) -> int:
    return LEVEL[name.partition(".")[0]]


def test_every_module_is_on_a_floor():
    assert {name.partition(".")[0] for name in KNOWN if name} == set(LEVEL)


def test_no_module_imports_from_a_floor_above_its_own():
    upward = [(name, target) for name in KNOWN if name for target in arrows()[name] if floor(target) > floor(name)]
    assert upward == []


def test_no_modules_import_one_another_in_a_circle():
    """Removes modules that import nothing more, until none is left or a circle remains."""
    # a package imports its own modules to offer their names; what they import of it is the module itself
    open_arrows = {name: {t for t in targets if not name.startswith(f"{t}.")} for name, targets in arrows().items()}
    while free := [name for name, targets in open_arrows.items() if not targets]:
        for name in free:
            del open_arrows[name]
        open_arrows = {name: targets - set(free) for name, targets in open_arrows.items()}
    assert open_arrows == {}


def room(name: str) -> str:
    """The study that a module belongs to; empty for `studies` itself and for what its rows are made of."""
    parts = name.split(".")
    return parts[1] if parts[0] == "studies" and len(parts) > 2 else ""


def test_no_study_imports_another():
    across = [(name, target) for name in KNOWN for target in arrows()[name] if room(name) and room(target)]
    assert [(name, target) for name, target in across if room(name) != room(target)] == []


def test_studies_are_found_by_their_files_and_imported_by_no_name():
    """So nothing fails where one of them is removed."""
    scripts = {path.name: path for path in (SOURCE.parents[1] / "scripts").glob("*.py")}
    of_scripts = {name: imports_of(name, KNOWN | scripts) for name in scripts}
    outside = {name: targets for name, targets in arrows().items() if not room(name)} | of_scripts
    assert [(name, target) for name, targets in outside.items() for target in targets if room(target)] == []


def importing(names: list[str], *forbidden: str) -> None:
    """Importing these modules imports none of the forbidden libraries."""
    imports = ", ".join(f"twoscale.{name}" for name in names)
    code = f"import sys, {imports}; sys.exit(', '.join({{*{forbidden}}} & {{*sys.modules}}) or 0)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_planning_imports_no_heavy_library():
    planned = [name for name in KNOWN if name.partition(".")[0] in LIGHT or name.endswith(".study")]
    without_session = [name for name in planned if name not in ("workflow.pack", "workflow.session")]
    importing([*without_session, "model.published.folder"], *HEAVY)


@pytest.mark.parametrize("package", WITHOUT_TORCH)
def test_a_package_without_torch_imports_none(package):
    importing([name for name in KNOWN if name == package or name.startswith(f"{package}.")], "torch")


def test_the_drawings_of_studies_import_no_torch():
    importing([name for name in KNOWN if room(name) and name.endswith(".draw")], "torch")
