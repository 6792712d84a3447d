"""The floors of the library: which module may import which, and what may be imported without heavy libraries."""

import subprocess
import sys
from pathlib import Path

from tests import size

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
WITHOUT_TORCH = ("claims", "figures", "report")  # nor the drawings of studies
CHECKOUT = size.Checkout(Path(__file__).parents[2])
KNOWN = CHECKOUT.files


def test_every_module_is_on_a_floor():
    assert {name.partition(".")[0] for name in KNOWN if name} == set().union(*FLOORS)


def test_the_scripts_that_the_sizes_count_exist():
    assert [name for name in size.SCRIPTS.split() if not (CHECKOUT.root / "scripts" / f"{name}.py").is_file()] == []


def test_no_module_imports_from_a_floor_above_its_own_or_in_a_circle():
    assert CHECKOUT.upward() == []
    assert CHECKOUT.circles() == set()


def room(name: str) -> str:
    """The study that a module belongs to; empty for `studies` itself and for what its rows are made of."""
    parts = name.split(".")
    return parts[1] if parts[0] == "studies" and len(parts) > 2 else ""


def test_no_study_imports_another():
    across = [(name, target) for name in KNOWN for target in CHECKOUT.arrows[name] if room(name) and room(target)]
    assert [(name, target) for name, target in across if room(name) != room(target)] == []


def test_studies_are_found_by_their_files_and_imported_by_no_name():
    """So nothing fails where one of them is removed."""
    of_scripts = {path.name: CHECKOUT.imports(path) for path in CHECKOUT.root.glob("scripts/*.py")}
    outside = {name: targets for name, targets in CHECKOUT.arrows.items() if not room(name)} | of_scripts
    assert [(name, target) for name, targets in outside.items() for target in targets if room(target)] == []


def importing(names: list[str], *forbidden: str) -> None:
    """Importing these modules imports none of the forbidden libraries."""
    imports = ", ".join(f"twoscale.{name}" for name in names)
    code = f"import sys, {imports}; sys.exit(', '.join({{*{forbidden}}} & {{*sys.modules}}) or 0)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_what_judges_and_draws_imports_no_torch():
    light = [name for name in KNOWN if name.partition(".")[0] in WITHOUT_TORCH]
    importing([*light, *(name for name in KNOWN if room(name) and name.endswith(".draw"))], "torch")


def test_a_checkpoint_is_read_without_the_compiler_of_torch():
    """Importing it takes a second, in every job that measures a model."""
    blank = "from tests.small import model_config; from twoscale.model.checkpoints import blank; blank(model_config())"
    code = f"import sys; {blank}; sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
