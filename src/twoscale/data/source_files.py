"""The files of data.path that a local source reads, and a digest of them. Planning needs both, so neither is slow."""

from pathlib import Path

from twoscale.base import InputError, json_digest, sha256
from twoscale.config import FILE_SOURCES

# data.source -> endings of its files in a folder
ENDINGS = {"txt": (".txt", ".txt.gz"), "jsonl": (".jsonl", ".jsonl.gz"), "parquet": (".parquet",)}
DIGESTED = 2**26  # bytes of all files together whose contents are read for a digest


def find_files(path: Path, source: str) -> list[tuple[Path, str]]:
    """The file, or the files under a folder that have an ending of the source; each with its name in the folder.

    Raises InputError if there is none.
    """
    endings = ENDINGS[source]
    shown = " or ".join(f"*{ending}" for ending in endings)
    if path.is_file():
        other = [key for key in FILE_SOURCES if key != source and path.name.lower().endswith(ENDINGS[key])]
        if other:
            raise InputError(f"config key data.source: found {source} for {path}, expected {other[0]} for such a file.")
        return [(path, path.name)]
    if not path.is_dir():
        raise InputError(
            f"config key data.path: found nothing at {path}, expected a file or a folder of {shown} files."
        )
    files = sorted(file for file in path.rglob("*") if file.name.lower().endswith(endings) and file.is_file())
    if not files:
        raise InputError(
            f"config key data.path: found no {shown} file under {path}, expected at least one, because data.source is "
            f"{source!r}; a single file may have any suffix."
        )
    return [(file, file.relative_to(path).as_posix()) for file in files]


def digest(path: Path, source: str) -> str:
    """Digest of the names and contents of the files. Raises InputError if there is none.

    For more than DIGESTED bytes, sizes and times of modification replace the contents.
    """
    files = [(name, file, file.stat()) for file, name in find_files(path, source)]
    is_read = sum(status.st_size for _, _, status in files) <= DIGESTED
    known = [(name, sha256(file) if is_read else (s.st_size, s.st_mtime_ns)) for name, file, s in files]
    return json_digest(known)
