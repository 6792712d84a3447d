"""The modules of the library that a released model needs, so that it needs only torch and transformers.

Each module is copied as it is, into one folder, with relative imports in place of absolute ones: transformers loads a
file of a release together with the files that it imports. `twoscale.config` becomes `twoscale.export.plain_config`.
"""

import re
from pathlib import Path

LIBRARY = Path(__file__).parents[2]
MODELING = "twoscale.export.modeling"
REPLACED = {"twoscale.config": "twoscale.export.plain_config"}
HEADER = "# A module of the library twoscale with relative imports. Make changes in the library.\n"
IMPORT = re.compile(r"^( *)from (twoscale\.[\w.]+|twoscale) import", re.MULTILINE)


def code_files(name: str = MODELING, library: Path = LIBRARY) -> dict[str, str]:
    """File name -> text of a module and of all modules of the library that it imports.

    Args:
        name: Dotted name of the module.
        library: The folder that holds the package.

    Raises:
        ValueError: for an import from the library in another form than `from twoscale.MODULE import NAME`.
    """
    files: dict[str, str] = {}
    wanted = [name]
    while wanted:
        module = wanted.pop()
        text = library.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
        needed = [REPLACED.get(found, found) for _, found in IMPORT.findall(text)]
        others = re.findall(r"^ *import twoscale.*", text, re.MULTILINE)
        others += [found for found in needed if not library.joinpath(*found.split(".")).with_suffix(".py").is_file()]
        if others:
            raise ValueError(f"{module}: found an import of {others[0]}, expected from twoscale.MODULE import NAME.")
        files[f"{local(module)}.py"] = HEADER + IMPORT.sub(lambda m: f"{m[1]}from .{local(m[2])} import", text)
        wanted += [found for found in needed if f"{local(found)}.py" not in files]
    return files


def local(module: str) -> str:
    """Name of a module of the library in a release."""
    return (
        "modeling_twoscale"
        if module == MODELING
        else REPLACED.get(module, module).removeprefix("twoscale.").replace(".", "_")
    )
