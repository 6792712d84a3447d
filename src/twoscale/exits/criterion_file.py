"""Exit criteria from a user's file: the class is loaded, and its methods and attributes are checked."""

import importlib.util
import inspect
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from twoscale.base import InputError, first_line
from twoscale.config import CriterionConfig
from twoscale.exits.criteria import CRITERIA, ExitCriterion, place_in

KEEPS = ("previous", "new", "weighted")
# A class may have attributes of any name; under these it would run with the default of what it means.
RENAMED_ATTRIBUTES = {"returns": "keeps", "hits": "patience", "needs_decoder": "needs_readout"}
METHODS = {  # name -> arguments
    "__init__": "(self, threshold)",
    "start": "(self, x0)",
    "update": "(self, state, x_new, readout)",
}
_USERS_MODULE = "users_exit_criterion"


def configured_criteria(entries: Mapping[str, CriterionConfig]) -> dict[str, type[ExitCriterion]]:
    """The built-in criteria, and the user's: entries of `exits.criteria` with a file and a class."""
    return CRITERIA | {
        name: load_criterion(entry.file, entry.class_name)
        for name, entry in entries.items()
        if entry.file is not None and entry.class_name is not None
    }


def load_criterion(file: str, name: str) -> type[ExitCriterion]:
    """The class `name` of a Python file; an InputError if it is not an exit criterion."""
    criterion = getattr(_load_module(file), name, None)
    if criterion is None:
        raise InputError(f"exit criterion file {file}: found no class '{name}'.")
    if not (isinstance(criterion, type) and issubclass(criterion, ExitCriterion)):
        raise InputError(f"exit criterion file {file}: '{name}' is not a subclass of ExitCriterion.")
    if (wrong := _wrong_method(criterion) or _wrong_attribute(criterion)) is not None:
        raise InputError(f"exit criterion file {file}: class '{name}' {wrong}.")
    if criterion.__module__ == _USERS_MODULE:  # not a built-in that the file imports
        criterion.file = file
    return criterion


def _wrong_method(criterion: type[ExitCriterion]) -> str | None:
    """Fault in the methods of a class, as the end of a sentence; None if there is none."""
    for method, arguments in METHODS.items():
        found = getattr(criterion, method)
        if method != "__init__" and found is getattr(ExitCriterion, method):
            return f"lacks the method {method}, expected {method}{arguments}"
        signature = inspect.signature(found)
        try:
            signature.bind(*arguments.split(","))
        except TypeError:
            return f"has {method}{signature}, expected {method}{arguments}"
    return None


def _wrong_attribute(criterion: type[ExitCriterion]) -> str | None:
    """Fault in the attributes of a class, as the end of a sentence; None if there is none."""
    for old, new in RENAMED_ATTRIBUTES.items():
        if hasattr(criterion, old):
            return f"has the attribute {old}, which was renamed, expected {new}"
    if criterion.keeps not in KEEPS:
        return f"has keeps = {criterion.keeps!r}, expected one of {', '.join(KEEPS)}"
    if not isinstance(criterion.patience, int) or criterion.patience < 1:
        return f"has patience = {criterion.patience!r}, expected a whole number of loop steps, at least 1"
    return None


def _load_module(file: str) -> ModuleType:
    if not Path(file).is_file():
        raise InputError(f"exit criterion file {file}: no such file, expected Python code with the class.")
    spec = importlib.util.spec_from_file_location(_USERS_MODULE, file, loader=SourceFileLoader(_USERS_MODULE, file))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise InputError(
            f"{place_in(file, error)}: cannot be imported ({type(error).__name__}: {first_line(error)})."
        ) from error
    return module
