"""A Hugging Face Hub on loopback with one repository of data or of a model, which can fail in
configurable ways.

It answers the requests of `huggingface_hub` and `datasets` that read it: revisions, trees, and
files, whole or by range, behind a redirect like the real Hub. `Hub.environment` makes a process use
it.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.web import running

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "somebody/text"


class Hub:
    """The server, its repository (a folder) and its pending faults.

    `faults` is a list of functions of a request handler. Each request for the content of parquet
    files or weights removes the first one from the list, which answers the request, or returns
    False and the hub answers; `api_faults` are those of all other requests. `requests` lists path
    and range of every request.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: list[Callable] = []
        self.api_faults: list[Callable] = []
        self.requests: list[tuple[str, str | None]] = []
        self.revisions = {"main": COMMIT, COMMIT: COMMIT}
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.server.daemon_threads = True
        self.server.hub = self
        self.port = self.server.server_address[1]

    def environment(self, home: Path) -> dict[str, str]:
        """Variables that make the client use only this hub, with its cache in `home`."""
        unreachable = "http://127.0.0.1:9"
        return {
            "HF_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            "HTTP_PROXY": unreachable,
            "HTTPS_PROXY": unreachable,
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def content_requests(self) -> list[tuple[str, str | None]]:
        return [request for request in self.requests if request[0].startswith("/store/")]


@contextmanager
def serving(folder: Path) -> Iterator[Hub]:
    """A hub that serves the repository in `folder` inside a `with` block."""
    hub = Hub(folder)
    with running(hub.server):
        yield hub


# --- faults


def nothing(handler) -> bool:
    """No fault: the hub answers."""
    return False


def status(code: int, **headers: str) -> Callable:
    """Answer with an error status; `Retry_After="1"` is a header."""

    def fault(handler) -> None:
        handler.answer(
            code, b"{}", **{name.replace("_", "-"): value for name, value in headers.items()}
        )

    return fault


def page(handler) -> None:
    """Answer with the page on which a network asks for a login."""
    handler.answer(200, b"<html>Log in</html>", **{"Content-Type": "text/html"})


def empty(handler) -> None:
    """Answer with an object of JSON that has none of the Hub's fields."""
    handler.answer(200, b"{}")


def truncate(handler) -> None:
    """Announce the whole range, send half of it and close."""
    content, headers = handler.content()
    handler.head(206, len(content), **headers)
    handler.wfile.write(content[: len(content) // 2])
    handler.wfile.flush()
    handler.close_connection = True


def short(handler) -> None:
    """Send half of the range in a response that is complete by its headers."""
    content, headers = handler.content()
    handler.answer(206, content[: len(content) // 2], **headers)


def calling(function: Callable[[], None]) -> Callable:
    """Call `function`, then let the hub answer."""

    def fault(handler) -> bool:
        function()
        return False

    return fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.route = unquote(urlsplit(self.path).path)
        is_content = self.route.startswith("/store/")
        with self.server.hub.lock:
            self.server.hub.requests.append((self.route, self.headers.get("Range")))
            faults = self.server.hub.faults if is_content else self.server.hub.api_faults
            fault = faults.pop(0) if faults else nothing
        try:
            if fault(self) is not False:
                return
            if is_content:
                content, headers = self.content()
                self.answer(206 if self.headers.get("Range") else 200, content, **headers)
            else:
                self._api()
        except (BrokenPipeError, ConnectionResetError):  # the client has gone
            self.close_connection = True

    do_HEAD = do_GET

    def log_message(self, *arguments) -> None:
        pass

    def _api(self) -> None:
        hub = self.server.hub
        kind = "models" if self.route.startswith("/api/models/") else "datasets"
        request, _, rest = self.route.removeprefix(f"/api/{kind}/{REPOSITORY}/").partition("/")
        if (
            f"{REPOSITORY}/resolve/" in self.route
        ):  # behind /datasets/ for data, behind / for a model
            self._resolve(*self.route.partition("/resolve/")[2].split("/", 1))
        elif request == "revision" and rest in hub.revisions:
            self.answer(
                200, json.dumps({"_id": "0", "id": REPOSITORY, "sha": hub.revisions[rest]}).encode()
            )
        elif request == "tree" and rest.partition("/")[0] in hub.revisions:
            self._tree(rest.partition("/")[2])
        else:
            self.answer(
                404,
                b"{}",
                **{"X-Error-Code": "RevisionNotFound" if request == "revision" else "RepoNotFound"},
            )

    def _tree(self, folder: str) -> None:
        """Files below a folder, or its files and folders."""
        root, entries = self.server.hub.folder, {}
        for path in sorted(
            (root / folder).rglob("*")
            if "recursive=true" in self.path.lower()
            else (root / folder).glob("*")
        ):
            name = path.relative_to(root).as_posix()
            content = path.read_bytes() if path.is_file() else b""
            entries[name] = {
                "type": "file" if path.is_file() else "directory",
                "oid": hashlib.sha1(content).hexdigest(),
                "size": len(content),
                "path": name,
            }
        if entries:
            self.answer(200, json.dumps(list(entries.values())).encode())
        else:
            self.answer(404, b"{}", **{"X-Error-Code": "EntryNotFound"})

    def _resolve(self, revision: str, name: str) -> None:
        """The Hub's answer to a request for a file: its entity tag and size, and a redirect to its
        content.
        """
        hub = self.server.hub
        path = hub.folder / name
        if revision not in hub.revisions or not path.is_file():
            self.answer(404, b"{}", **{"X-Error-Code": "EntryNotFound"})
            return
        content = path.read_bytes()
        tag = f'"{hashlib.sha256(content).hexdigest()}"'
        headers = {"X-Repo-Commit": hub.revisions[revision], "X-Linked-Size": str(len(content))}
        headers |= {"X-Linked-Etag": tag, "ETag": tag}
        if name.endswith((".parquet", ".safetensors")):  # on another host
            self.answer(302, b"", Location=f"http://localhost:{hub.port}/store/{name}", **headers)
        else:
            self.answer(200, content, **headers)

    def content(self) -> tuple[bytes, dict[str, str]]:
        """The range that is asked for, or all of the file, and its headers."""
        content = (self.server.hub.folder / self.route.removeprefix("/store/")).read_bytes()
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = content[int(first) : int(last or len(content) - 1) + 1]
        end = int(first) + len(part) - 1
        return part, {
            "Content-Range": f"bytes {first}-{end}/{len(content)}",
            "ETag": '"of the store"',
        }

    def head(self, code: int, length: int, **headers: str) -> None:
        self.send_response(code)
        for name, value in {
            "Content-Length": str(length),
            "Content-Type": "application/json",
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()

    def answer(self, code: int, body: bytes, **headers: str) -> None:
        self.head(code, len(body), **headers)
        if self.command != "HEAD":
            self.wfile.write(body)
