"""A web server on loopback that serves a folder, and can fail in configurable ways."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Web:
    """The server and its pending faults.

    `faults` is a list of functions of a request handler; each request removes the first one, which
    answers it. `requests` lists the paths, `headers` those of every request.
    """

    def __init__(self, folder: Path) -> None:
        self.faults: list[Callable] = []
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.server = ThreadingHTTPServer(
            ("127.0.0.1", 0), partial(_Handler, directory=str(folder))
        )
        self.server.daemon_threads = True
        self.server.web = self

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


@contextmanager
def serving(folder: Path) -> Iterator[Web]:
    """A server of the files in `folder` inside a `with` block."""
    web = Web(folder)
    with running(web.server):
        yield web


@contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[None]:
    """A server that answers inside a `with` block."""
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def status(code: int) -> Callable:
    """Answer with an error status."""
    return lambda handler: handler.send_error(code)


def content(body: bytes, **headers: str) -> Callable:
    """Answer with these bytes; `Content_Encoding="gzip"` is a header."""

    def fault(handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return fault


class _Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        web = self.server.web
        web.requests.append(self.path)
        web.headers.append(dict(self.headers))
        if web.faults:
            web.faults.pop(0)(self)
        else:
            super().do_GET()

    def log_message(self, *arguments) -> None:
        pass
