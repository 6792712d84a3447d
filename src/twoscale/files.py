"""Atomic writes: after a failure a file has its previous content. Digests of files."""

import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    errno.EACCES: "permission to use it",
    errno.EPERM: "permission to use it",
    errno.EIO: "a disk without faults",
}


def sha256(path: str | os.PathLike) -> str:
    """SHA-256 of the content of a file, in hexadecimal. Raises OSError for a file that cannot be read."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Yield the path of a new, empty file in the same folder that atomically replaces `path` on success.

    After an exception the temporary file is removed and `path` is unchanged. After a kill it stays until the next write
    of `path` on this host, which knows by the host, the process namespace and the process id in its name that nobody
    writes it. A random part of the name keeps others who may write to the folder from putting a link there first. A
    refusal of the system, such as a full disk, is an OSError with the name of `path`, whichever library wrote the file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    start = f".{path.name}.{os.uname().nodename}.{_process_namespace()}."
    _remove_orphans(path.parent, start)
    temporary = path.with_name(f"{start}{os.getpid()}.{secrets.token_hex(8)}.tmp")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
        yield temporary
        _finish(temporary)
        os.replace(temporary, path)
    except Exception as error:
        number = _system_error(error, temporary)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _remove_orphans(folder: Path, start: str) -> None:
    """Remove the temporary files in a folder whose name has this start and the id of a process that has ended."""
    pattern = re.compile(re.escape(start) + r"(\d{1,9})\.[0-9a-f]{16}\.tmp")
    with suppress(OSError):  # the folder cannot be listed, or another process removes the same file
        for name in os.listdir(folder):
            if (found := pattern.fullmatch(name)) and not _is_running(int(found[1])):
                (folder / name).unlink()


def _process_namespace() -> int:
    """Where process ids are those of this process: containers on one host may share its name, not this number."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # not Linux
        return 0


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # sends no signal
    except OSError as error:  # PermissionError: another user's process
        return not isinstance(error, ProcessLookupError)
    return True


def link(source: str | os.PathLike, path: str | os.PathLike) -> None:
    """Make `path` a hard link to the file `source` in one step."""
    with replacing(path) as temporary:
        temporary.unlink()
        os.link(source, temporary)  # fails where anything has that name


def _system_error(error: Exception, temporary: Path) -> int | None:
    """The number of an error of the disk at writing `temporary`; None for another error or one of another file."""
    if isinstance(error, OSError):
        number = error.errno if error.filename in (None, str(temporary), temporary) else None
    else:
        match = re.search(r"\(os error (\d+)\)", str(error))  # libraries in Rust
        number = int(match[1]) if match else None
    return number if number in DISK_ERRORS else None


def private_folder(folder: Path, variable: str) -> Path:
    """Create a folder with a predictable name where it is missing, for files that this user relies on.

    Raises InputError where another user could change what is in it; `variable` names the place for it.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (0, os.getuid()) or found.st_mode & stat.S_IWOTH:
        raise InputError(
            f"{folder}: found {stat.filemode(found.st_mode)} of user {found.st_uid}, expected a folder owned by user "
            f"{os.getuid()} and not world-writable; remove it, or set {variable} to another folder."
        )
    return folder


def check_writable(folder: Path) -> None:
    """Refuse a folder that exists and cannot be written."""
    if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{folder.absolute()}: is not writable.")


def _finish(path: Path) -> None:
    """Give a file its mode, and wait until its bytes are on disk: a power failure leaves no empty file under a name."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fchmod(descriptor, _MODE)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
