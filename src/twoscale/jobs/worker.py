"""A process that runs jobs one after the other, so that libraries, CUDA, compiled code and states
stay in memory.

The session of a pack starts one for training (`twoscale.workflow.session`). Jobs that
`with_gpus.py` starts while the variable `ADDRESS` is set send their command to it, wait, and end
with its exit status.
"""

import json
import os
import runpy
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

ADDRESS = "TWOSCALE_WORKER"  # path of the socket of the worker
MOST_BYTES = 2**17  # of a command; the kernel passes a message of this size whole
_PARENT_SECONDS = 2.0  # between two checks that the process that started the worker is there


def forward(*command: str) -> NoReturn:
    """Run a Python script in the worker, which writes to the standard output and error of this
    process.
    """
    # messages arrive whole, each with its file descriptors
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(os.environ[ADDRESS])
            message = json.dumps(command).encode()
            socket.send_fds(connection, [message], [sys.stdout.fileno(), sys.stderr.fileno()])
            status = connection.recv(1)
        except OSError:
            status = b""
    sys.exit(
        status[0]
        if status
        else f"error: {os.environ[ADDRESS]}: the worker has ended; start the session again."
    )


def serve(address: Path) -> None:
    """Run the jobs that arrive at `address` until the parent of this process has ended."""
    parent = os.getppid()
    address.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(address))
        server.listen()
        # `accept` has to end from time to time, to look for the parent
        server.settimeout(_PARENT_SECONDS)
        while os.getppid() == parent:
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(None)  # a job may take hours
                message, outputs, *_ = socket.recv_fds(connection, MOST_BYTES, 2)
                connection.send(bytes([_run(json.loads(message), outputs)]))


def _run(command: Sequence[str], outputs: Sequence[int]) -> int:
    """The exit status of a script with its arguments; what it prints goes to the two file
    descriptors.
    """
    own = [os.dup(descriptor) for descriptor in (1, 2)]
    for descriptor, output in zip((1, 2), outputs, strict=True):
        os.dup2(output, descriptor)
    arguments, sys.argv = sys.argv, list(command)
    try:
        runpy.run_path(command[0], run_name="__main__")
        return 0
    except SystemExit as ending:
        if isinstance(ending.code, str):
            print(ending.code, file=sys.stderr)
        # as the interpreter does: the status is 1 for a text and 0 for None
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.argv = arguments
        # before the descriptors are put back, so that all that the script printed goes to its
        # caller
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, kept in zip((1, 2), own, strict=True):
            os.dup2(kept, descriptor)
            os.close(kept)
        for output in outputs:
            os.close(output)
