"""The floors of the library: which module may import which, and what may be imported without heavy
libraries.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import size
from twoscale import config
from twoscale.base import STUDIES

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
    {"replay"},
    {"studies"},
    {"recorder"},
    {"export"},
    {"workflow"},
    {"cli"},
]
WITHOUT_TORCH = ("claims", "figures", "replay", "report")  # nor the drawings of studies
CHECKOUT = size.Checkout(Path(__file__).parents[2])
KNOWN = CHECKOUT.files


def test_every_module_is_on_a_floor():
    assert {name.partition(".")[0] for name in KNOWN if name} == set().union(*FLOORS)


def test_the_scripts_that_the_sizes_count_exist():
    assert [
        name
        for name in size.SCRIPTS.split()
        if not (CHECKOUT.root / "scripts" / f"{name}.py").is_file()
    ] == []


# For annotations only: input functions of studies get the runs, and `Runs` holds params and
# figures, which refer to it.
UPWARD = {(f"studies.{name}.study", "workflow.runs") for name in ("depth", "spectrum", "sweeps")}
CIRCLE = {f"workflow.{name}" for name in ("figures", "params", "resources", "runs")}


def test_no_module_imports_from_a_floor_above_its_own_or_in_a_circle():
    """Imports in functions and for annotations count."""
    assert {*CHECKOUT.upward()} <= UPWARD
    assert CHECKOUT.circles() <= CIRCLE


@pytest.mark.parametrize(
    "code", ["from twoscale.export import folder", "import twoscale.export.folder"]
)
@pytest.mark.parametrize("place", ["if TYPE_CHECKING:", "def f():", "class C:"])
def test_an_import_is_seen_wherever_it_is(place, code, tmp_path):
    source = tmp_path / "src" / "twoscale"
    for name, text in {
        "base": f"{place}\n    {code}\n",
        "export/folder": "from twoscale import base\n",
    }.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / f"{name}.py").write_text(text)
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "unit" / "test_imports.py").write_text(Path(__file__).read_text())
    checkout = size.Checkout(tmp_path)
    assert checkout.upward() == [("base", "export.folder")]
    assert checkout.circles() == {"base", "export.folder"}


def room(name: str) -> str:
    """The study that a module belongs to; empty for `studies` itself and for what its rows are made
    of.
    """
    parts = name.split(".")
    return parts[1] if parts[0] == "studies" and len(parts) > 2 else ""


def test_no_study_imports_another():
    across = [
        (name, target)
        for name in KNOWN
        for target in CHECKOUT.arrows[name]
        if room(name) and room(target)
    ]
    assert [(name, target) for name, target in across if room(name) != room(target)] == []


def test_the_studies_are_those_of_one_list():
    assert [*STUDIES] == sorted(
        path.parent.name for path in CHECKOUT.root.glob("src/twoscale/studies/*/study.py")
    )


def test_the_sections_of_studies_need_nothing_but_the_config():
    """The package `config` imports them, before the modules that import the config."""
    needed = {
        target
        for name in KNOWN
        if room(name) and name.endswith(".config")
        for target in CHECKOUT.named[name]
    }
    assert {name.partition(".")[0] for name in needed} <= {"base", "config"}


def test_the_config_has_all_sections_whichever_module_is_imported_first():
    """Modules that the sections of a study need must not import the study while it is being
    imported.
    """
    of_studies = [name for name in KNOWN if room(name) and name.endswith((".config", ".study"))]
    for name in ("model.flops", *of_studies[:2]):
        code = f"import twoscale.{name}; from twoscale import config; print(*config.SECTIONS)"
        done = subprocess.run(
            [sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True
        )
        assert done.stdout.split() == [*config.SECTIONS]


def test_studies_are_imported_by_no_name():
    """So nothing fails where one of them is removed from the list."""
    of_scripts = {path.name: CHECKOUT.imports(path) for path in CHECKOUT.root.glob("scripts/*.py")}
    outside = {
        name: targets for name, targets in CHECKOUT.arrows.items() if not room(name)
    } | of_scripts
    assert [
        (name, target) for name, targets in outside.items() for target in targets if room(target)
    ] == []


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
    blank = (
        "from tests.small import model_config; from twoscale.model.checkpoints import blank;"
        " blank(model_config())"
    )
    code = f"import sys; {blank}; sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
