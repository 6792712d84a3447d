"""What all entry scripts share: their options, and one sentence instead of a traceback.

A sentence is for wrong input and for what the machine lacks: space on a disk, permission, memory. A
fault of the code keeps its traceback.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from twoscale.base import InputError, canonical_json, ending_with_a_sentence, first_line
from twoscale.config import ConfigSlice
from twoscale.jobs import machine
from twoscale.jobs.table_job import FILES


def parser(
    doc: str,
    files: Sequence[str] = (),
    lists: Sequence[str] = (),
    optional: Sequence[str] = (),
    job_files: Sequence[str] | None = None,
    config: Callable[[str], Any] = ConfigSlice.from_json,
    download: bool = False,
) -> argparse.ArgumentParser:
    """A parser with the script's docstring as help, and the options of the workflow's shell lines.

    A rule passes every named input and output as ``--NAME PATH ...``: `arguments.NAME` is a `Path`
    for one of `files`, a list of `Path` for one of `lists`, and a `Path` or None for one of
    `optional`. `config` parses ``--config``. With `download`, ``--download`` has that section of
    the config. With `job_files`, the first argument is the dotted path of a function, and `files`
    returns the files with these names that the rule passes.
    """
    options = plain_parser(doc)
    options.add_argument(
        "--job",
        metavar="FILE",
        help="JSON file with the options that are no files, such as --config",
    )
    options.add_argument("--config", type=config, required=True, help="config of the job, as JSON")
    if download:
        options.add_argument(
            "--download",
            type=ConfigSlice.from_json,
            required=True,
            help="section download of the config, as JSON",
        )
    if job_files is not None:
        options.add_argument("function", help="dotted path of the function of the job")
        group = options.add_argument_group("files of the job")
        for name in job_files:
            group.add_argument(_option(name), type=Path, nargs="*")
    for name in files:
        options.add_argument(_option(name), type=Path, required=True)
    for name in lists:
        options.add_argument(_option(name), type=Path, nargs="*", required=True)
    for name in optional:
        options.add_argument(_option(name), type=Path)
    return options


def plain_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the script's docstring as help, for commands that no rule calls."""
    return argparse.ArgumentParser(
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _with_job_file(arguments: Sequence[str]) -> list[str]:
    """The arguments of a script, with the options in the file of ``--job`` in its place."""
    if "--job" not in arguments[:-1]:
        return list(arguments)
    at = arguments.index("--job")
    path = Path(arguments[at + 1])
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        expected = "the file that `snakemake` writes when it plans the job"
        raise InputError(
            f"job file {path}: cannot be read ({first_line(error)}), expected {expected}."
        ) from error
    options = []
    for name, value in values.items():
        options += [f"--{name}", canonical_json(value)]
    return [*arguments[:at], *options, *arguments[at + 2 :]]


def files(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, list[Path]]:
    """The files of a job by name, without options that were not given."""
    found = {name: getattr(arguments, name) for name in names}
    return {name: paths for name, paths in found.items() if paths is not None}


def positive(text: str) -> float:
    """A finite number > 0, as type of an option."""
    if not 0 < (value := float(text)) < math.inf:
        raise ValueError
    return value


def function(path: str) -> Callable[..., Any]:
    """The function with this dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def called() -> Callable[..., Any]:
    """The function that a script calls: the one with the dotted path in its first argument."""
    path = "".join(sys.argv[1:2])
    try:
        return function(path)
    except (ValueError, ModuleNotFoundError, AttributeError) as error:
        expected = "the dotted path of a function"
        sys.exit(f"error: first argument: found {path!r} ({error}), expected {expected}.")


def called_job() -> tuple[Callable[[Any], None], tuple[str, ...]]:
    """Like `called`, with the names of the files that the function declares."""
    if (found := called()) not in FILES:
        expected = "a function with the decorator job_files"
        sys.exit(f"error: first argument: found {sys.argv[1]!r}, expected {expected}.")
    return found, FILES[found]


def run(main: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser) -> None:
    """Run `main` on the parsed arguments; wrong input or a lack of the machine is one sentence,
    exit status 1.
    """
    with ending_with_a_sentence():
        arguments = parser.parse_args(_with_job_file(sys.argv[1:]))
        # generate.py and others have parsers without this option, training has a plain mapping
        config = getattr(arguments, "config", None)
        if isinstance(config, dict):
            config = ConfigSlice(config)
        if getattr(config, "device", None) == "cuda":
            machine.check_cuda("config key compute.device")
        main(arguments)
