"""Atomic writes: after a failure a file has its previous content. Digests of files."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Mode rw-rw-rw- under the user's umask. It is set explicitly, because some writers create private files.
_UMASK = os.umask(0o022)
os.umask(_UMASK)
_MODE = 0o666 & ~_UMASK


def sha256(path: str | os.PathLike) -> str:
    """SHA-256 of the content of a file, in hexadecimal. Raises OSError for a file that cannot be read."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path beside `path` that atomically replaces `path` on success.

    After an exception the temporary file is removed and `path` is unchanged. The temporary name contains host and
    process id, so that two processes that write the same file (for example an orphan and its successor on two nodes
    of a cluster) never share one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.chmod(_MODE)
        _sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Wait until the bytes are on disk, so that a power failure cannot leave an empty file under the new name."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
