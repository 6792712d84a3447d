"""Writing files so that a failure never damages what was there before."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# What the user's umask leaves of rw-rw-rw-; some writers make their files private whatever it says.
_UMASK = os.umask(0o022)
os.umask(_UMASK)
_MODE = 0o666 & ~_UMASK


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it takes the place of `path` in one step.

    The temporary name carries host and process id, so two processes that write the same file (an orphan
    and its successor, say, on two nodes of a cluster) never share one. After an
    exception the temporary file is removed and `path` is as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.chmod(_MODE)
        _to_disk(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    """Wait until the bytes are stored, so that a power cut cannot leave the new name with nothing in it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
