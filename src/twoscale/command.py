"""What all entry scripts share: their options, and one sentence instead of a traceback for wrong input."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from twoscale import kept
from twoscale.config import ConfigSlice
from twoscale.errors import InputError
from twoscale.machine import check_cuda


def parser(
    doc: str,
    files: Sequence[str] = (),
    lists: Sequence[str] = (),
    optional: Sequence[str] = (),
    config: Callable[[str], Any] = ConfigSlice.from_json,
) -> argparse.ArgumentParser:
    """A parser with the script's docstring as help, and the options that the rules of the workflow pass.

    Args:
        doc: The script's docstring.
        files: Names of inputs and outputs that are one file each; `arguments.NAME` is a `Path`.
        lists: Names of inputs and outputs that are one file or several; `arguments.NAME` is a list of `Path`.
        optional: Names of files that not every job has; `arguments.NAME` is a `Path`, or None.
        config: Parses the JSON of ``--config``.

    The rules pass every named input and output as ``--NAME PATH ...``, see `twoscale.workflow.file_options`.
    """
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--config", type=config, required=True, help="config of the job, as JSON")
    options.add_argument("--kept", type=kept.Job.from_json, help="where the result is kept for a rerun, as JSON")
    for name in files:
        options.add_argument(_option(name), type=Path, required=True)
    for name in lists:
        options.add_argument(_option(name), type=Path, nargs="*", required=True)
    for name in optional:
        options.add_argument(_option(name), type=Path)
    return options


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def run(main: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser) -> None:
    """Run `main` on the parsed arguments; an `InputError` ends as one sentence on stderr with exit status 1.

    With ``--kept`` an earlier result of the same job is restored instead, see `twoscale.kept`.
    """
    try:
        arguments = parser.parse_args()

        def compute() -> None:
            check_device(arguments)
            main(arguments)

        # generate.py and others have their own parser
        if (job := getattr(arguments, "kept", None)) is not None:
            kept.run(job, compute)
        else:
            compute()
    except InputError as error:
        sys.exit(f"error: {error}")


def check_device(arguments: argparse.Namespace) -> None:
    """Refuse CUDA, as option or in the config of a job, where there is none. Raises InputError."""
    if getattr(arguments, "device", None) == "cuda":
        check_cuda("option --device")
    elif getattr(getattr(arguments, "config", None), "device", None) == "cuda":
        check_cuda("config key compute.device")
