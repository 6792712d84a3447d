"""Atomic writes: after a failure a file has its previous content. Digests of files."""

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twoscale.errors import InputError

# Mode rw-rw-rw- under the user's umask. It is set explicitly, because some writers create private files.
_UMASK = os.umask(0o022)
os.umask(_UMASK)
_MODE = 0o666 & ~_UMASK

# Errors of a disk -> what a user has to provide.
DISK_ERRORS = {
    errno.ENOSPC: "free space on its disk",
    errno.EDQUOT: "room in the quota of its disk",
    errno.EFBIG: "a file system for files of this size",
    errno.EROFS: "a file system that can be written",
    errno.EACCES: "the permission to use it",
    errno.EPERM: "the permission to use it",
    errno.EIO: "a disk without faults",
}


def sha256(path: str | os.PathLike) -> str:
    """SHA-256 of the content of a file, in hexadecimal. Raises OSError for a file that cannot be read."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path beside `path` that atomically replaces `path` on success.

    After an exception the temporary file is removed and `path` is unchanged. The temporary name contains host and
    process id, so that two processes that write the same file (for example an orphan and its successor on two nodes
    of a cluster) never share one. What the system refused, such as space on the disk, is an OSError with the name of
    `path`, whichever library wrote the file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.chmod(_MODE)
        _sync(temporary)
        os.replace(temporary, path)
    except Exception as error:
        number = _system_error(error, temporary)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _system_error(error: Exception, temporary: Path) -> int | None:
    """The number of an error of the disk at writing `temporary`; None for another error or one of another file."""
    if isinstance(error, OSError):
        number = error.errno if error.filename in (None, str(temporary), temporary) else None
    else:
        match = re.search(r"\(os error (\d+)\)", str(error))  # libraries in Rust
        number = int(match[1]) if match else None
    return number if number in DISK_ERRORS else None


def check_writable(folder: Path) -> None:
    """Refuse a folder that exists and cannot be written."""
    if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{folder.absolute()}: found a folder that cannot be written, expected one that can.")


def _sync(path: Path) -> None:
    """Wait until the bytes are on disk, so that a power failure cannot leave an empty file under the new name."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
