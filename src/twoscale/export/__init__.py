"""Trained models for transformers: which can be exported, and the modules of the library that an
export needs.

Each module is copied as it is, into one folder, with relative imports in place of absolute ones:
transformers loads a file of an export together with the files that it imports. `twoscale.config`
becomes `twoscale.export.plain_config`.
"""

import re
from pathlib import Path

from twoscale.base import InputError
from twoscale.config import ModelConfig

_LIBRARY = Path(__file__).parents[2]
MODELING = "twoscale.export.modeling"
_REPLACED = {"twoscale.config": "twoscale.export.plain_config"}
_HEADER = "# A module of the library twoscale with relative imports. Make changes in the library.\n"
_IMPORT = re.compile(r"^( *)from (twoscale\.[\w.]+|twoscale) import", re.MULTILINE)


def check_exported(run: str, model: ModelConfig) -> None:
    """Refuse a model whose weights were not trained here, or whose code no export contains."""
    if model.source == "published":
        found, expected = "a published model", "one that is trained here"
    elif model.architecture != "transformer":
        found = f"model.architecture: {model.architecture}"
        expected = "transformer, the only architecture whose code an export contains"
    else:
        return
    raise InputError(f"results/{run}/export: found {found}, expected {expected}.")


def code_files() -> dict[str, str]:
    """File name -> text of `MODELING` and of all modules of the library that it imports."""
    files: dict[str, str] = {}
    wanted = [MODELING]
    while wanted:
        module = wanted.pop()
        text = _LIBRARY.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
        # a module, or the one that takes its place in an export
        needed = [_REPLACED.get(found, found) for _, found in _IMPORT.findall(text)]
        files[f"{local(module)}.py"] = _HEADER + _IMPORT.sub(
            lambda m: f"{m[1]}from .{local(m[2])} import", text
        )
        wanted += [found for found in needed if f"{local(found)}.py" not in files]
    # transformers 5.9 copies only those files of a folder that the first one imports itself
    names = sorted(name.removesuffix(".py") for name in files if name != f"{local(MODELING)}.py")
    files[f"{local(MODELING)}.py"] += "\n" + "".join(
        f"from .{name} import __name__ as _  # noqa\n" for name in names
    )
    return files


def local(module: str) -> str:
    """Name of a module of the library in an export."""
    if module == MODELING:
        return "modeling_twoscale"
    return _REPLACED.get(module, module).removeprefix("twoscale.").replace(".", "_")
