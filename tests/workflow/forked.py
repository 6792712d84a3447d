"""Calls of Snakemake in processes that are forked from one that has imported it: the import takes
seconds.

No other module is imported here, because a call imports `twoscale` from the project that it runs.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["snakemake.cli"])


def snakemake(
    arguments: Sequence[str], folder: Path, variables: dict[str, str], python: str = sys.executable
) -> subprocess.CompletedProcess:
    """`snakemake` with `arguments`, in `folder` and under these environment variables; jobs call
    this `python`.
    """
    with tempfile.TemporaryDirectory() as outputs:
        files = [Path(outputs, name) for name in ("stdout", "stderr")]
        process = FORKED.Process(target=_main, args=(arguments, folder, variables, python, files))
        process.start()
        process.join()
        return subprocess.CompletedProcess(
            arguments, process.exitcode, *(file.read_text() for file in files)
        )


def _main(
    arguments: Sequence[str],
    folder: Path,
    variables: dict[str, str],
    python: str,
    files: list[Path],
) -> None:
    from snakemake.cli import main

    for file, stream in zip(files, (sys.stdout, sys.stderr), strict=True):
        with file.open("w") as output:
            os.dup2(output.fileno(), stream.fileno())
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    sys.executable = python
    main(arguments)
