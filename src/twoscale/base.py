"""Helpers that every other module may use: safe text, error messages, JSON, files, progress.

Names of files, subsets and columns come from the hub, from data sets and from user folders;
`one_line` and `neutralise` make them harmless before they are shown.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import signal
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import cache
from glob import escape
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

# Characters that control a terminal, that no encoding has, or that show a text in another order;
# with the line ends.
_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069"
_LINE_ENDS = r"\t\n\u2028\u2029"
LONGEST = 4000  # characters of a sentence


def neutralise(text: str) -> str:
    """Text that cannot control a terminal or the order of a page; line ends and tabs are kept."""
    return re.sub(f"[{_CONTROLS}]", "\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str) -> str:
    """Like `neutralise`, without line ends and tabs; the middle of a very long text is left out."""
    if len(text) > LONGEST:
        half = LONGEST // 2
        text = f"{text[:half]} … {text[-half:]}"
    return re.sub(f"[{_CONTROLS}{_LINE_ENDS}]", "\N{REPLACEMENT CHARACTER}", text)


def rst(text: str) -> str:
    """One line that reStructuredText shows as it is: a backslash before what may be markup."""
    return re.sub(r"([^\w\s]|_)", r"\\\1", one_line(text))


def markdown(text: str) -> str:
    """One line that Markdown shows as it is, also where HTML is allowed.

    Before a space, as in a condition, "<" begins no tag and stays readable in the source.
    """
    escaped = re.sub(r"([\\`*_\[\]|])", r"\\\1", one_line(text))
    return re.sub("<(?! )", "&lt;", escaped.replace("&", "&amp;")).replace(">", "&gt;")


class InputError(Exception):
    """Wrong input. The message is one sentence: the file or key, what was found, what was expected.

    It may quote names from outside: characters that control a terminal are replaced, and it stays
    one line.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class MissingLibraryError(InputError, ImportError):
    """A library that an extra of the package installs is not there."""


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Name the extra to install where the import of another library fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        # a missing module of this library is a bug
        if str(error.name).startswith("twoscale"):
            raise
        raise MissingLibraryError(
            f"{error.name} is not installed, but part of the extra {extra}: pip install"
            f" 'twoscale[{extra}]', or '.[{extra}]' in a checkout."
        ) from error


def mismatch(where: object, found: object, expected: object) -> InputError:
    """The error of a file or key, `where`, in the form of most sentences."""
    return InputError(f"{where}: found {found}, expected {expected}.")


def first_line(error: BaseException) -> str:
    """The first line of another library's message, without its full stop."""
    line, _, _ = str(error).strip().partition("\n")
    return one_line(line.rstrip(".")) or type(error).__name__


def did_you_mean(found: Any, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The name in `known` closest to a mistyped one, as " (did you mean X?)", or nothing."""
    close = get_close_matches(str(found), list(known), n=1, cutoff=cutoff)
    return f" (did you mean {close[0]}?)" if close else ""


def canonical_json(value: Any) -> str:
    """`value` as JSON with sorted keys and no spaces. Tuples become lists."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def json_digest(value: Any) -> str:
    """The first 64 bits of the SHA-256 of the canonical JSON of `value`, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


_ABANDONED = 86_400.0  # seconds

# Errors of a disk -> what a user has to provide.
DISK_ERRORS = {
    errno.ENOSPC: "free space on its disk",
    errno.EDQUOT: "room in the quota of its disk",
    errno.EFBIG: "a file system for files of this size",
    errno.EROFS: "a file system that can be written",
    errno.EACCES: "permission to use it",
    errno.EPERM: "permission to use it",
    errno.EIO: "a disk without faults",
    errno.EEXIST: "a folder, or nothing, under this name",
    errno.ENOTDIR: "no file where a folder of its path should be",
    errno.EISDIR: "the name of a file",
    errno.EBUSY: "a path that is not in use",
    errno.ENAMETOOLONG: "a shorter name",
}


def sha256(path: str | os.PathLike) -> str:
    """SHA-256 of the content of a file, in hexadecimal. Raises OSError if it cannot be read."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Yield the path of a new, empty file in the same folder that atomically replaces `path`.

    After an exception the temporary file is removed and `path` is unchanged. After a kill it stays
    until `path` is written a day later. A random part of its name keeps others who may write to the
    folder from putting a link there first. A refusal of the system, such as a full disk, is an
    OSError with the name of `path`, whichever library wrote the file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_old(path)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
    try:
        with open(temporary, "xb") as file:
            mode = os.fstat(file.fileno()).st_mode  # under the user's umask
        yield temporary
        # some libraries make private files of their own; a link is never followed
        with open(temporary, opener=lambda name, _: os.open(name, os.O_NOFOLLOW)) as file:
            os.fchmod(file.fileno(), stat.S_IMODE(mode))
            os.fsync(file.fileno())  # so that a power failure leaves no empty file under the name
        os.replace(temporary, path)
    except Exception as error:
        found = _disk_error(error, temporary)
        if found is None:
            raise
        raise OSError(found, os.strerror(found), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _remove_old(path: Path) -> None:
    """Remove temporary files of `path` that nobody has written for a day."""
    for old in path.parent.glob(f".{escape(path.name)}.*.tmp"):
        with suppress(OSError):  # another process removes the same file
            if old.stat().st_mtime < time.time() - _ABANDONED:
                old.unlink()


def link(source: str | os.PathLike, path: str | os.PathLike) -> None:
    """Make `path` a hard link to the file `source` in one step."""
    with replacing(path) as temporary:
        temporary.unlink()
        os.link(source, temporary)  # fails where anything has that name


def _disk_error(error: Exception, temporary: Path) -> int | None:
    """The number of an error of the disk at writing `temporary`; None for any other error."""
    number = None
    if isinstance(error, OSError):
        if error.filename in (None, str(temporary), temporary):
            number = error.errno
    elif match := re.search(r"\(os error (\d+)\)", str(error)):  # libraries in Rust
        number = int(match[1])
    return number if number in DISK_ERRORS else None


@contextmanager
def ending_with_a_sentence(expected: str | None = None) -> Iterator[None]:
    """End a command whose input is wrong, or whose machine lacks something, with exit status 1 and
    one sentence; see `sentence`. An interrupt, and a reader that has gone, end it silently.
    """
    try:
        yield
        sys.stdout.flush()  # a full disk is noticed here, not while the interpreter ends
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # the reader has gone, as in `generate.py ... | head`
        _drop_output()
        sys.exit(1)
    except Exception as error:
        if (problem := sentence(error, expected)) is None:
            raise
        if isinstance(error, OSError):
            _drop_output()
        sys.exit(f"error: {problem}")


def _drop_output() -> None:
    """Let the interpreter end without another error about the rest of standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def sentence(error: Exception, expected: str | None = None) -> str | None:
    """A sentence about a problem of the input or the machine; None for a fault of the code.

    `expected` is what to provide where the system refuses a path for a reason that is not in
    `DISK_ERRORS`; without it, that is a fault of the code.
    """
    if isinstance(error, InputError):
        return str(error)
    if _is_lack_of_memory(error):
        advice = "run fewer jobs at a time (--cores), or set smaller batches"
        return f"memory: found too little, expected more; {advice}."
    if isinstance(error, OSError) and error.errno is not None:
        expected = DISK_ERRORS.get(error.errno, expected)
        if expected is not None:
            found = f"the error '{os.strerror(error.errno)}'"
            return str(mismatch(error.filename or "output", found, expected))
    return None


def _is_lack_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    # torch raises RuntimeError and its subclass OutOfMemoryError
    said = f"{type(error).__name__} {error}" if isinstance(error, RuntimeError) else ""
    words = ("OutOfMemoryError", "allocate memory", "enough memory")
    return any(word in said for word in words)


def check_writable(folder: Path) -> None:
    """Refuse a folder that exists and cannot be written."""
    if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{folder.absolute()}: is not writable.")


LOG_SECONDS = 10.0  # between two lines in a log


@contextmanager
def meter(
    label: str, total: int | None, unit: str, initial: int = 0, visible: bool = True
) -> Iterator:
    """Yield a progress bar of tqdm on standard error, which a log gets every 10 s.

    `total` is the amount of work in `unit`, None if unknown, of which an earlier process completed
    `initial`. All but one of several processes that work together are not `visible` and print
    nothing.
    """
    from tqdm import tqdm  # planning has none

    tqdm.monitor_interval = 0  # no thread
    options: dict[str, Any] = {"unit": unit, "unit_scale": True, "initial": initial}
    if not sys.stderr.isatty():
        options |= {"mininterval": LOG_SECONDS, "maxinterval": LOG_SECONDS, "miniters": 1}
    with tqdm(desc=label, total=total, disable=not visible, **options) as bar:
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
    """Name of a study -> its file with this name, for the studies that have one, in order."""
    folder = Path(__file__).parent / "studies"
    return {name: folder / name / file for name in STUDIES if (folder / name / file).is_file()}


@cache
def study_parts(part: str = "study") -> dict[str, ModuleType]:
    """Name of a study -> its module `part`, for the studies that have one, in order.

    `config` has SECTIONS of the config. `study` has TABLES, `runs` and FIGURES, each optional.
    """
    return {
        name: import_module(f"twoscale.studies.{name}.{part}") for name in study_files(f"{part}.py")
    }


# --- the processor --------------------------------------------------------------------------------

CPUINFO = Path("/proc/cpuinfo")


def processor(key: str) -> str | None:
    """The value of a key of /proc/cpuinfo, such as "cpu family"; None where there is none."""
    if not CPUINFO.exists():  # macOS
        return None
    found = re.search(rf"^{key}\s*: (.+)$", CPUINFO.read_text(), re.MULTILINE)
    return found and found[1]


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
    if processor("cpu family") == "25":
        return f"{name} in halves"
    return name
