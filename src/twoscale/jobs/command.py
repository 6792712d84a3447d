"""What all entry scripts share: their options, and one sentence instead of a traceback.

A sentence is for wrong input and for what the machine lacks: space on a disk, permission, memory. A
fault of the code keeps its traceback.
"""

import argparse
import errno
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from twoscale.base import DISK_ERRORS, InputError, did_you_mean
from twoscale.config import ConfigSlice
from twoscale.jobs import machine, result_cache
from twoscale.jobs.table_job import FILES


def parser(
    doc: str,
    files: Sequence[str] = (),
    lists: Sequence[str] = (),
    optional: Sequence[str] = (),
    job_files: Sequence[str] | None = None,
    config: Callable[[str], Any] = ConfigSlice.from_json,
) -> argparse.ArgumentParser:
    """A parser with the script's docstring as help, and the options that the rules of the workflow
    pass.

    The rules pass every named input and output as ``--NAME PATH ...``: `arguments.NAME` is a `Path`
    for one of `files`, a list of `Path` for one of `lists`, and a `Path` or None for one of
    `optional`. `config` parses ``--config``. With `job_files`, the first argument is the dotted
    path of a function, and `files` returns the files with these names; a rule passes those that it
    has.
    """
    options = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--config", type=config, required=True, help="config of the job, as JSON")
    options.add_argument(
        "--result-cache",
        type=result_cache.Job.from_json,
        help="where the result is cached for reruns, as JSON",
    )
    if job_files is not None:
        options.add_argument("function", help="dotted path of the function of the job")
        group = options.add_argument_group("files of the job")
        for name in job_files:
            group.add_argument(_option(name), type=Path, nargs="*")
    for names, form in (
        (files, {"required": True}),
        (lists, {"nargs": "*", "required": True}),
        (optional, {}),
    ):
        for name in names:
            options.add_argument(_option(name), type=Path, **form)
    return options


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def files(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, list[Path]]:
    """The files of a job by name, without options that were not given."""
    found = {name: getattr(arguments, name) for name in names}
    return {name: paths for name, paths in found.items() if paths is not None}


def check_options(options: argparse.ArgumentParser, given: Iterable[str]) -> None:
    """InputError with the nearest option for an unknown one among the arguments `given` of a
    script.
    """
    known = [option for action in options._actions for option in action.option_strings]
    for argument in given:
        name = argument.partition("=")[0]
        is_known = any(
            option.startswith(name) for option in known
        )  # argparse accepts the beginning of an option
        if name.startswith("--") and " " not in name and not is_known:
            expected = f"an option that --help lists{did_you_mean(name, known)}"
            raise InputError(f"command line of {options.prog}: found {name}, expected {expected}.")


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
    module, _, name = path.rpartition(".")
    file = Path(__file__).parents[2].joinpath(*module.split(".")).with_suffix(".py")
    if not file.is_file() or not hasattr(import_module(module), name):
        sys.exit(f"error: first argument: found {path!r}, expected the dotted path of a function.")
    return function(path)


def called_job() -> tuple[Callable[[Any], None], tuple[str, ...]]:
    """Like `called`, with the names of the files that the function declares."""
    if (found := called()) not in FILES:
        sys.exit(
            f"error: first argument: found {sys.argv[1]!r}, expected a function with the"
            f" decorator job_files."
        )
    return found, FILES[found]


def run(main: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser) -> None:
    """Run `main` on the parsed arguments; wrong input or a lack of the machine is one sentence,
    exit status 1.

    With ``--result-cache`` an earlier result of the same job is restored instead, see
    `twoscale.jobs.result_cache`.
    """
    try:
        check_options(parser, sys.argv[1:])
        arguments = parser.parse_args()
        job = getattr(
            arguments, "result_cache", None
        )  # generate.py and others have their own parser
        device = job.device if job else getattr(getattr(arguments, "config", None), "device", None)
        if device == "cuda":
            machine.check_cuda("config key compute.device")
        if job is None:
            main(arguments)
        else:
            # what the bits depend on besides code and config
            threads = (
                {"threads": arguments.threads}
                if job.device == "cpu" and hasattr(arguments, "threads")
                else {}
            )
            bits = machine.kernels(job.device) | machine.libraries() | threads
            result_cache.run(job.within(bits), lambda: main(arguments))
        sys.stdout.flush()  # what cannot be written is known here, not while the interpreter ends
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        is_unread = isinstance(
            error, BrokenPipeError
        )  # the reader has gone, as in `generate.py ... | head`
        if (problem := sentence(error)) is None and not is_unread:
            raise
        if isinstance(
            error, OSError
        ):  # the interpreter would fail to write the rest of standard output once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1 if is_unread else f"error: {problem}")


def sentence(error: Exception) -> str | None:
    """What is wrong with the input or the machine; None for a fault of the code."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        where = error.filename or "output"
        return (
            f"{where}: found the error '{os.strerror(error.errno)}', expected"
            f" {DISK_ERRORS[error.errno]}."
        )
    said = f"{type(error).__name__} {error}" if isinstance(error, RuntimeError) else ""  # of torch
    of_torch = any(
        text in said for text in ("OutOfMemoryError", "allocate memory", "enough memory")
    )
    if of_torch or isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return (
            "memory: found too little, expected more; run fewer jobs at a time (--cores), or set"
            " smaller batches."
        )
    return None
