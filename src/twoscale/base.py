"""Helpers that every other module may use: safe text, error messages, canonical JSON, files,
progress, processor.

Names of files, subsets and columns come from the hub, from data sets and from user folders;
`one_line` and `neutralise` make them harmless before they are shown.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

# Characters that control a terminal, that no encoding has, or that show a text in another order;
# with the line ends.
CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069"
LINE_ENDS = r"\t\n\u2028\u2029"
LONGEST = 4000  # characters of a sentence


def neutralise(text: str) -> str:
    """Text that cannot control a terminal or the order of a page; line ends and tabs are kept."""
    return re.sub(f"[{CONTROLS}]", "\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str) -> str:
    """Like `neutralise`, without line ends and tabs; the middle of a very long text is left out."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"
    return re.sub(f"[{CONTROLS}{LINE_ENDS}]", "\N{REPLACEMENT CHARACTER}", text)


def rst(text: str) -> str:
    """One line that reStructuredText shows as it is: a backslash before each character that could
    be markup.
    """
    return re.sub(r"([^\w\s]|_)", r"\\\1", one_line(text))


def markdown(text: str) -> str:
    """One line that Markdown shows as it is, also where HTML is allowed."""
    escaped = re.sub(r"([\\`*_\[\]|])", r"\\\1", one_line(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class InputError(Exception):
    """Wrong input. The message is one sentence: the file or key, what was found, what was expected.

    It may quote names from outside: characters that control a terminal are replaced, and it stays
    one line.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def mismatch(where: object, found: object, expected: object) -> InputError:
    """The error of a file or key, `where`, in the form of most sentences."""
    return InputError(f"{where}: found {found}, expected {expected}.")


def first_line(error: BaseException) -> str:
    """The first line of another library's message, without its full stop, for use in a sentence of
    ours.
    """
    return one_line(str(error).strip().partition("\n")[0].rstrip(".")) or type(error).__name__


def did_you_mean(found: Any, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The name in `known` that a mistyped name is closest to, as " (did you mean X?)"; empty if
    none is close.
    """
    close = get_close_matches(str(found), list(known), n=1, cutoff=cutoff)
    return f" (did you mean {close[0]}?)" if close else ""


def canonical_json(value: Any) -> str:
    """`value` as JSON with sorted keys and no spaces. Tuples become lists."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def json_digest(value: Any) -> str:
    """The first 64 bits of the SHA-256 of the canonical JSON of `value`, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


# Mode rw-rw-rw- under the user's umask. It is set explicitly, because some writers create private
# files.
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
    """SHA-256 of the content of a file, in hexadecimal. Raises OSError for a file that cannot be
    read.
    """
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Yield the path of a new, empty file in the same folder that atomically replaces `path` on
    success.

    After an exception the temporary file is removed and `path` is unchanged. After a kill it stays
    until the next write of `path` on this host, which knows by the host, the process namespace and
    the process id in its name that nobody writes it. A random part of the name keeps others who may
    write to the folder from putting a link there first. A refusal of the system, such as a full
    disk, is an OSError with the name of `path`, whichever library wrote the file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # containers on one host may share its name, but not the namespace of their process ids
    namespace = Path("/proc/self/ns/pid")
    number = namespace.stat().st_ino if namespace.exists() else 0  # none where it is not Linux
    start = f".{path.name}.{os.uname().nodename}.{number}."
    _remove_orphans(path.parent, start)
    temporary = path.with_name(f"{start}{os.getpid()}.{secrets.token_hex(8)}.tmp")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
        yield temporary
        # until its bytes are on disk, so that a power failure leaves no empty file under a name
        with open(
            temporary, opener=lambda name, _: os.open(name, os.O_RDONLY | os.O_NOFOLLOW)
        ) as file:
            os.fchmod(file.fileno(), _MODE)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except Exception as error:
        found = _system_error(error, temporary)
        if found is None:
            raise
        raise OSError(found, os.strerror(found), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _remove_orphans(folder: Path, start: str) -> None:
    """Remove the temporary files in a folder whose name has this start and the id of a process that
    has ended.
    """
    pattern = re.compile(re.escape(start) + r"(\d{1,9})\.[0-9a-f]{16}\.tmp")
    with suppress(OSError):  # the folder cannot be listed, or another process removes the same file
        for name in os.listdir(folder):
            if found := pattern.fullmatch(name):
                try:
                    os.kill(
                        int(found[1]), 0
                    )  # sends no signal; PermissionError: another user's process
                except ProcessLookupError:
                    (folder / name).unlink()


def link(source: str | os.PathLike, path: str | os.PathLike) -> None:
    """Make `path` a hard link to the file `source` in one step."""
    with replacing(path) as temporary:
        temporary.unlink()
        os.link(source, temporary)  # fails where anything has that name


def _system_error(error: Exception, temporary: Path) -> int | None:
    """The number of an error of the disk at writing `temporary`; None for another error or one of
    another file.
    """
    if isinstance(error, OSError):
        number = error.errno if error.filename in (None, str(temporary), temporary) else None
    else:
        match = re.search(r"\(os error (\d+)\)", str(error))  # libraries in Rust
        number = int(match[1]) if match else None
    return number if number in DISK_ERRORS else None


def check_writable(folder: Path) -> None:
    """Refuse a folder that exists and cannot be written."""
    if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{folder.absolute()}: is not writable.")


LOG_SECONDS = 10.0  # between two lines in a log
WITH_TOTAL = "{l_bar} {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
WITHOUT_TOTAL = "{desc}: {n_fmt} [{elapsed}, {rate_fmt}{postfix}]"


class _LogLines:
    """Standard error for a progress bar in a log: whole lines in place of carriage returns."""

    def write(self, text: str) -> None:
        if line := text.strip():
            print(line, file=sys.stderr, flush=True)

    def flush(self) -> None:
        sys.stderr.flush()


@contextmanager
def meter(
    label: str, total: int | None, unit: str, initial: int = 0, visible: bool = True
) -> Iterator:
    """Yield a progress bar of tqdm on standard error, in a log a line at the beginning, every 10 s
    and at the end.

    `total` is the amount of work in `unit`, None if unknown, of which an earlier process completed
    `initial`. All but one of several processes that work together are not `visible` and print
    nothing.
    """
    from tqdm import tqdm  # planning has none

    tqdm.monitor_interval = 0  # no thread
    options: dict[str, Any] = {
        "unit": unit,
        "unit_scale": True,
        "initial": initial,
        "disable": not visible,
    }
    if not sys.stderr.isatty():
        options |= {"bar_format": WITH_TOTAL if total else WITHOUT_TOTAL, "file": _LogLines()}
        options |= {"mininterval": LOG_SECONDS, "maxinterval": LOG_SECONDS, "miniters": 1}
    with tqdm(desc=label, total=total, **options) as bar:
        yield bar


# The studies, each a folder of this name in `twoscale.studies`. Nothing else names a study: to
# remove one, delete its name here and its folder.
STUDIES = (
    "arena",
    "depth",
    "paths",
    "seeds",
    "spectrum",
    "sweeps",
    "training",
)


def study_files(file: str) -> dict[str, Path]:
    """Name of a study -> its file with this name, for the studies that have one, in the order of
    STUDIES.
    """
    files = {name: Path(__file__).parent / "studies" / name / file for name in STUDIES}
    return {name: path for name, path in files.items() if path.is_file()}


@cache
def study_parts(part: str = "study") -> dict[str, ModuleType]:
    """Name of a study -> its module `part`, for the studies that have one, in the order of STUDIES.

    `config` has SECTIONS of the config. `study` has TABLES, `runs` and FIGURES, each optional.
    """
    return {
        name: import_module(f"twoscale.studies.{name}.{part}") for name in study_files(f"{part}.py")
    }


# --- the processor --------------------------------------------------------------------------------

CPUINFO = Path("/proc/cpuinfo")


def processor(key: str) -> str | None:
    """The value of a key of /proc/cpuinfo, such as "cpu family"; None where there is none, as on
    macOS.
    """
    with suppress(OSError):
        if found := re.search(rf"^{key}\s*: (.+)$", CPUINFO.read_text(), re.MULTILINE):
            return found[1]
    return None


def cpu_capability() -> str:
    """The vector instructions of torch's kernels, such as "AVX2".

    "AVX512 in halves" on AMD's Zen 4 (family 25), and "AVX512 of Intel", where MKL uses AVX-512
    too.
    """
    import torch

    name = torch.backends.cpu.get_cpu_capability()
    if name != "AVX512":
        return name
    if processor("vendor_id") == "GenuineIntel":
        return f"{name} of Intel"
    return f"{name} in halves" if processor("cpu family") == "25" else name
