"""Scripts in processes that are forked from one that has imported the large libraries, which takes
seconds of each start.

`folder` has a program `python` that does so, to be the first in PATH. What is no script it leaves
to Python. Only the standard library is imported here, because a script imports `twoscale` from the
project that it is in, and the program should start in no time.
"""

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NoReturn

LIBRARIES = (
    "torch",
    "safetensors.torch",
    "pandas",
    "pyarrow.parquet",
    "pydantic",
    "yaml",
    "jinja2",
)
LIBRARIES += (
    "matplotlib.figure",
    "matplotlib.backends.backend_pdf",
    "matplotlib.backends.backend_svg",
)


@cache
def folder() -> Path:
    """Start the process to fork from, which ends with this one."""
    import atexit
    import subprocess
    import tempfile

    place = tempfile.TemporaryDirectory()
    atexit.register(place.cleanup)
    address, program = Path(place.name, "socket"), Path(place.name, "python")
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -ISE {__file__} run {address} "$@"\n')
    program.chmod(0o755)
    command = [sys.executable, __file__, "serve", str(address)]
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    # the process ends when nobody holds the other end of its input
    server = subprocess.Popen(command, env=os.environ | one_thread, stdin=subprocess.PIPE)
    atexit.register(server.communicate)
    while not address.exists():
        time.sleep(0.01)
    return Path(place.name)


# --- the program ----------------------------------------------------------------------------------


def run(address: str, *arguments: str) -> None:
    """Have a script run in a forked process, as if it were this one."""
    if not arguments or not arguments[0].endswith(".py"):
        os.execv(sys.executable, [sys.executable, *arguments])
    request = {"arguments": arguments, "folder": os.getcwd(), "variables": dict(os.environ)}
    content = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [len(content).to_bytes(8, "big")], [0, 1, 2])
        server.sendall(content)
        replies = server.makefile("r")
        process = int(replies.readline())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(process, number))
        status = int(replies.readline())
        sys.exit(status if status >= 0 else 128 - status)  # as a shell counts signals


# --- the process to fork from ---------------------------------------------------------------------


def serve(address: str) -> None:
    import gc
    from importlib import import_module
    from select import select

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    del sys.path[0]  # this folder
    for library in LIBRARIES:
        import_module(library)
    gc.freeze()  # a collection would touch, and so copy, the memory of each process
    while True:
        ready, _, _ = select([listener, sys.stdin], [], [])
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if sys.stdin in ready:
            break
        connection, _ = listener.accept()
        if os.fork() == 0:
            supervise(connection)
        connection.close()


def supervise(connection: socket.socket) -> NoReturn:
    """Fork the process of a script, and tell its number and its exit status."""
    size, streams, _, _ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as content:
        request = json.loads(content.read(int.from_bytes(size, "big")))
    process = os.fork()
    if process == 0:
        connection.close()
        run_script(request, streams)
    connection.sendall(f"{process}\n".encode())
    _, status = os.waitpid(process, 0)
    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def run_script(request: dict, streams: list[int]) -> NoReturn:
    import atexit
    import runpy
    import traceback

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    sys.argv = request["arguments"]
    script = Path(sys.argv[0]).absolute()
    further = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [str(script.parent), *(str(Path(path).absolute()) for path in further if path)]
    status = 1
    try:
        runpy.run_path(str(script), run_name="__main__")
        status = 0
    except SystemExit as done:
        status = done.code if isinstance(done.code, int) else int(done.code is not None)
        if isinstance(done.code, str):
            print(done.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    for output in (sys.stdout, sys.stderr):
        output.flush()
    os._exit(status)  # at an ordinary end Python would take apart all libraries, for a second


if __name__ == "__main__":
    {"run": run, "serve": serve}[sys.argv[1]](*sys.argv[2:])
