"""A Hugging Face Hub on loopback with one repository of data or of a model, which can fail in configurable ways.

It answers the requests of `huggingface_hub` and `datasets` that read it: revisions, trees, and files, whole or by
range, behind a redirect like the real Hub. `Hub.environment` makes a process use it.
"""

import hashlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from tests.web import running

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "somebody/text"


class Hub:
    """The server, its repository (a folder) and its pending faults.

    `faults` is a list of functions of a request handler. Each request for a file's content removes the first one from
    the list, which answers the request, or returns False and the hub answers. `requests` lists path and range of every
    request.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: list[Callable] = []
        self.requests: list[tuple[str, str | None]] = []
        self.revisions = {"main": COMMIT, COMMIT: COMMIT}
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.server.daemon_threads = True
        self.server.hub = self

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def environment(self, home: Path) -> dict[str, str]:
        """Variables that make the client use only this hub, with its cache in `home`."""
        unreachable = "http://127.0.0.1:9"
        return {
            "HF_ENDPOINT": self.address,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            "HTTP_PROXY": unreachable,
            "HTTPS_PROXY": unreachable,
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def content_requests(self) -> list[tuple[str, str | None]]:
        return [request for request in self.requests if request[0].startswith("/store/")]

    def files(self) -> list[str]:
        return sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file())

    def card(self) -> dict:
        """The YAML between the first two lines of dashes of the README, if there is one."""
        if not (self.folder / "README.md").is_file():
            return {}
        return yaml.safe_load((self.folder / "README.md").read_text().split("---\n")[1])


@contextmanager
def serving(folder: Path) -> Iterator[Hub]:
    """A hub that serves the repository in `folder` inside a `with` block."""
    hub = Hub(folder)
    with running(hub.server):
        yield hub


def status(code: int, **headers: str) -> Callable:
    """Answer with an error status; `Retry_After="1"` is a header."""

    def fault(handler) -> None:
        handler.answer(code, b"{}", **{name.replace("_", "-"): value for name, value in headers.items()})

    return fault


def truncate(handler) -> None:
    """Announce the whole range, send half of it and close."""
    content = handler.content()
    handler.head(206, len(content), **handler.range_headers())
    handler.wfile.write(content[: len(content) // 2])
    handler.wfile.flush()
    handler.close_connection = True


def reset(handler) -> None:
    """Send half of the range, then reset the connection."""
    truncate(handler)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def short(handler) -> None:
    """Send half of the range in a response that is complete by its headers."""
    content = handler.content()
    handler.answer(206, content[: len(content) // 2], **handler.range_headers())


def calling(function: Callable[[], None]) -> Callable:
    """Call `function`, then let the hub answer."""

    def fault(handler) -> bool:
        function()
        return False

    return fault


def nothing(handler) -> bool:
    """No fault: the hub answers."""
    return False


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._respond()

    def do_HEAD(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(404, b"{}")

    def log_message(self, *arguments) -> None:
        pass

    @property
    def hub(self) -> Hub:
        return self.server.hub

    def _respond(self) -> None:
        self.route = unquote(urlsplit(self.path).path)
        is_content = self.route.startswith("/store/")
        with self.hub.lock:
            self.hub.requests.append((self.route, self.headers.get("Range")))
            fault = self.hub.faults.pop(0) if is_content and self.hub.faults else nothing
        try:
            if fault(self) is False:
                self._store() if is_content else self._api()
        except (BrokenPipeError, ConnectionResetError):  # the client has gone
            self.close_connection = True

    def _api(self) -> None:
        kind = "models" if self.route.startswith("/api/models/") else "datasets"
        prefix = f"/api/{kind}/{REPOSITORY}"
        if self.route.startswith(f"{prefix}/revision/"):
            self._info(self.route.removeprefix(f"{prefix}/revision/"))
        elif self.route == prefix:
            self._info("main")
        elif self.route.startswith(f"{prefix}/tree/"):
            revision, _, folder = self.route.removeprefix(f"{prefix}/tree/").partition("/")
            self._tree(revision, folder)
        elif self.route == f"{prefix}/paths-info":
            self.answer(404, b"{}")
        elif f"{REPOSITORY}/resolve/" in self.route:  # behind /datasets/ for data, behind / for a model
            self._resolve(*self.route.partition("/resolve/")[2].split("/", 1))
        else:
            self.answer(404, b"{}", **{"X-Error-Code": "RepoNotFound"})

    def _info(self, revision: str) -> None:
        if revision not in self.hub.revisions:
            self.answer(404, b"{}", **{"X-Error-Code": "RevisionNotFound"})
            return
        info = {
            "_id": "0",
            "id": REPOSITORY,
            "sha": self.hub.revisions[revision],
            "cardData": self.hub.card(),
            "siblings": [{"rfilename": name} for name in self.hub.files()],
        }
        fields = {"_id", "id", *parse_qs(urlsplit(self.path).query).get("expand", info)}
        self.answer(200, json.dumps({key: info[key] for key in fields}).encode())

    def _tree(self, revision: str, folder: str) -> None:
        recursive = "recursive=True" in self.path or "recursive=true" in self.path
        below = [name for name in self.hub.files() if name.startswith(f"{folder}/" if folder else "")]
        entries = {}
        for name in below:
            head, _, rest = name[len(folder) + 1 if folder else 0 :].partition("/")
            if rest and not recursive:
                path = f"{folder}/{head}" if folder else head
                entries[path] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}
            else:
                content = (self.hub.folder / name).read_bytes()
                oid = hashlib.sha1(content).hexdigest()
                entries[name] = {"type": "file", "oid": oid, "size": len(content), "path": name}
        if entries and revision in self.hub.revisions:
            self.answer(200, json.dumps(list(entries.values())).encode())
        else:
            self.answer(404, b"{}", **{"X-Error-Code": "EntryNotFound"})

    def _resolve(self, revision: str, name: str) -> None:
        """The Hub's answer to a request for a file: its entity tag and size, and a redirect to its content."""
        path = self.hub.folder / name
        if revision not in self.hub.revisions or not path.is_file():
            self.answer(404, b"{}", **{"X-Error-Code": "EntryNotFound"})
            return
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        described = {
            "X-Repo-Commit": self.hub.revisions[revision],
            "X-Linked-Etag": f'"{digest}"',
            "X-Linked-Size": str(len(content)),
            "ETag": f'"{digest}"',
        }
        if name.endswith((".parquet", ".safetensors")):
            self.answer(
                302, b"", Location=f"http://localhost:{self.hub.server.server_address[1]}/store/{name}", **described
            )
        else:
            self.answer(200, content, **described)

    def _store(self) -> None:
        if not self.headers.get("Range"):
            self.answer(200, self._path().read_bytes())
        else:
            self.answer(206, self.content(), **self.range_headers())

    def _path(self) -> Path:
        return self.hub.folder / self.route.removeprefix("/store/")

    def _range(self) -> tuple[int, int, int]:
        """First byte, byte after the last, and size of the file."""
        size = self._path().stat().st_size
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        return int(first), min(int(last or size - 1) + 1, size), size

    def content(self) -> bytes:
        first, end, _ = self._range()
        with self._path().open("rb") as file:
            file.seek(first)
            return file.read(end - first)

    def range_headers(self) -> dict[str, str]:
        first, end, size = self._range()
        return {"Content-Range": f"bytes {first}-{end - 1}/{size}", "ETag": '"of the store"'}

    def head(self, code: int, length: int, **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(length), "Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def answer(self, code: int, body: bytes, **headers: str) -> None:
        self.head(code, len(body), **headers)
        if self.command != "HEAD":
            self.wfile.write(body)
