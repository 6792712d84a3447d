"""The parts of studies, found by their files: a study is a folder in `twoscale.studies`, and no list names it.

A part is a module of the same name in every study that has it, such as `config` or `tables`. It is imported by its
name, so that modules below the studies find parts without importing a study.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

STUDIES = Path(__file__).parent / "studies"


@cache
def study_parts(part: str) -> dict[str, ModuleType]:
    """Name of a study -> its module `part`, for the studies that have one, in alphabetical order."""
    names = sorted(path.parent.name for path in STUDIES.glob(f"*/{part}.py"))
    return {name: import_module(f"twoscale.studies.{name}.{part}") for name in names}
