"""Replace the code of exported models by that of this version of the library, for newer versions of
transformers.

    python -m twoscale.export FOLDER …

Weights, configs and tokenizers of the folder and its checkpoints stay as they are.
"""

import argparse
from pathlib import Path

from twoscale.base import InputError, link, replacing
from twoscale.export import MODELING, code_files, local
from twoscale.jobs import command


def replace_code(folder: Path) -> None:
    """Write the files of `code_files` to an export and link those in its checkpoints to them.
    Raises InputError.
    """
    first = folder / f"{local(MODELING)}.py"
    if not first.is_file():
        raise InputError(
            f"{folder}: found no {first.name}, expected the folder of an exported model."
        )
    for name, text in code_files().items():
        with replacing(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
        for checkpoint in folder.glob("iteration_*"):
            link(folder / name, checkpoint / name)


def main(arguments: argparse.Namespace) -> None:
    for folder in arguments.folders:
        replace_code(folder)


if __name__ == "__main__":
    options = command.plain_parser(__doc__)
    options.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="folder that snakemake export wrote"
    )
    command.run(main, options)
