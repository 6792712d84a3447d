"""What all entry scripts share: their options, and one sentence instead of a traceback.

A sentence is for wrong input and for what the machine lacks: space on a disk, permission, memory. A fault of the code
keeps its traceback.
"""

import argparse
import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from twoscale.base import DISK_ERRORS, InputError
from twoscale.config import ConfigSlice
from twoscale.jobs import machine, result_cache
from twoscale.jobs.machine import check_cuda


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

    The rules pass every named input and output as ``--NAME PATH ...``, see `twoscale.workflow.params.file_options`.
    """
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--config", type=config, required=True, help="config of the job, as JSON")
    options.add_argument(
        "--result-cache", type=result_cache.Job.from_json, help="where the result is cached for reruns, as JSON"
    )
    for name in files:
        options.add_argument(_option(name), type=Path, required=True)
    for name in lists:
        options.add_argument(_option(name), type=Path, nargs="*", required=True)
    for name in optional:
        options.add_argument(_option(name), type=Path)
    return options


def parser_of_options(doc: str) -> tuple[argparse.ArgumentParser, list[str]]:
    """A parser of the files that the command line has as options, each a list of `Path`, and their names."""
    given = [option[2:].replace("-", "_") for option in sys.argv if option.startswith("--")]
    names = [name for name in given if name not in ("config", "result_cache", "threads", "help")]
    return parser(doc, lists=names), names


def files(arguments: argparse.Namespace, names: Sequence[str]) -> dict[str, list[Path]]:
    """The files of these options by name."""
    return {name: getattr(arguments, name) for name in names}


def function(path: str) -> Callable[[Any], None]:
    """The function with this dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def run(main: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser) -> None:
    """Run `main` on the parsed arguments; wrong input or a lack of the machine is one sentence, exit status 1.

    With ``--result-cache`` an earlier result of the same job is restored instead, see `twoscale.jobs.result_cache`.
    """
    try:
        arguments = parser.parse_args()
        # generate.py and others have their own parser
        if (job := getattr(arguments, "result_cache", None)) is not None:
            result_cache.run(job.within(_environment(job, arguments)), lambda: compute(main, arguments))
        else:
            compute(main, arguments)
        sys.stdout.flush()  # what cannot be written is known here, not while the interpreter ends
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # the reader of standard output has gone, as in `generate.py ... | head`
        _discard_output()
        sys.exit(1)
    except Exception as error:
        problem = sentence(error)
        if problem is None:
            raise
        if isinstance(error, OSError):
            _discard_output()
        sys.exit(f"error: {problem}")


def _environment(job: result_cache.Job, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the bits of a job depend on besides its code and config: kernels, and threads that are no part of these."""
    if job.device == "cuda":
        check_cuda("config key compute.device")
    threads = {"threads": arguments.threads} if job.device == "cpu" and hasattr(arguments, "threads") else {}
    return machine.kernels(job.device) | threads


def compute(main: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> None:
    """Run `main`, unless the config of the job asks for CUDA where there is none. Raises InputError."""
    if getattr(getattr(arguments, "config", None), "device", None) == "cuda":
        check_cuda("config key compute.device")
    main(arguments)


def sentence(error: Exception) -> str | None:
    """What is wrong with the input or the machine; None for a fault of the code."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        where = error.filename or "output"
        return f"{where}: found the error '{os.strerror(error.errno)}', expected {DISK_ERRORS[error.errno]}."
    if (wanted := _memory(error)) is not None:
        return (
            f"memory: found too little{wanted}, expected more; run fewer jobs at a time (--cores), or set smaller "
            "batches or a shorter context in the config."
        )
    return None


def _memory(error: Exception) -> str | None:
    """What could not be allocated, as a part of a sentence that may be empty; None if `error` is another one."""
    message = str(error)
    of_torch = type(error).__name__ == "OutOfMemoryError" or re.search(r"can't allocate|not enough memory", message)
    out_of_memory = isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and of_torch)
    if not out_of_memory and getattr(error, "errno", None) != errno.ENOMEM:
        return None
    amount = re.search(r"allocate ([\d.]+ ?[KMGTP]?i?B?(?:ytes)?\b)", message, re.IGNORECASE)
    return f" for {amount[1]}" if amount else ""


def _discard_output() -> None:
    """Let the interpreter flush what is left of standard output to nowhere, instead of failing once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
