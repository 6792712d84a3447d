"""Text and models of the Hugging Face Hub, at one commit, read through `huggingface_hub` and
`datasets`.

The libraries use the endpoint, token, proxies and offline mode of the user's shell. In addition, a
file whose bytes arrive truncated is opened again at the row that comes next, and every error is one
sentence.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from httpx2 import HTTPError
from huggingface_hub import HfFileSystem, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from pyarrow import ArrowException

from twoscale.base import InputError, first_line, replacing
from twoscale.config import DownloadConfig
from twoscale.data.text import Document, rows

FAILURES = (HTTPError, OSError, EOFError, ArrowException)  # of a request, or of content that is cut
MAX_DELAY = 60.0  # seconds between two attempts

# What is read of the repository of a model. Pickled weights and Python files are not.
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
)
MANIFEST = "published.json"

T = TypeVar("T")


class Subset(NamedTuple):
    """The parquet files of the split train of a subset, sorted by name, at one commit."""

    repository: str
    commit: str
    files: tuple[str, ...]


def resolve(repository: str, subset: str, revision: str, download: DownloadConfig) -> Subset:
    """The training files of a subset at a branch, tag or commit, as the card of the data set names
    them.
    """
    from datasets import load_dataset_builder

    what = f"{repository}, subset {subset}, revision {revision}"
    try:
        builder = _with_retries(
            what, lambda: load_dataset_builder(repository, subset, revision=revision), download
        )
    except ValueError as error:  # of a name that is no subset
        raise InputError(
            f"config key data.subset: found {subset!r} in {repository}: {first_line(error)}."
        ) from error
    # hf://datasets/owner/name@commit/path
    files = [
        file.partition("@")[2].partition("/")
        for file in (builder.config.data_files or {}).get("train", [])
    ]
    names = tuple(sorted(name for _, _, name in files if name.endswith(".parquet")))
    if not names:
        raise InputError(
            f"{what}: found no parquet file of the split train, expected at least one."
        )
    return Subset(repository, files[0][0], names)


def documents(
    subset: Subset, name: str, first: int, download: DownloadConfig
) -> Iterator[Document]:
    what, short_name = f"{subset.repository}/{name}", name.rpartition("/")[2]
    failures = 0
    while True:
        try:
            with HfFileSystem().open(
                f"datasets/{subset.repository}@{subset.commit}/{name}", "rb"
            ) as opened:
                for document in rows(opened, what, short_name, first):
                    yield document
                    first, failures = document.row + 1, 0
                return
        except FAILURES as error:
            failures += 1
            _wait(what, error, failures, download)
        except ValueError as error:
            raise InputError(
                f"{what}: cannot be read as a parquet file ({first_line(error)})."
            ) from error


def fetch_model(repository: str, revision: str, folder: Path, download: DownloadConfig) -> None:
    """Download a model at a commit into `folder`, and write its manifest last; what is there
    already is kept.
    """
    what, wanted = f"{repository}, revision {revision}", list(MODEL_FILES)
    options: dict[str, Any] = {"revision": revision, "local_dir": folder, "allow_patterns": wanted}
    _with_retries(what, lambda: snapshot_download(repository, **options), download)
    paths = sorted({path for pattern in wanted for path in folder.glob(pattern)})
    if (
        not any(path.suffix == ".safetensors" for path in paths)
        or not (folder / "config.json").is_file()
    ):
        found = ", ".join(path.name for path in paths) or "none of the files of a model"
        raise InputError(f"{what}: found {found}, expected config.json and safetensors files.")
    manifest = {
        "repository": repository,
        "revision": revision,
        "files": {p.name: p.stat().st_size for p in paths},
    }
    with replacing(folder / MANIFEST) as temporary:
        temporary.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _with_retries(what: str, request: Callable[[], T], download: DownloadConfig) -> T:
    failures = 0
    while True:
        try:
            return request()
        except FAILURES as error:
            failures += 1
            _wait(what, error, failures, download)


def _wait(what: str, error: Exception, failures: int, download: DownloadConfig) -> None:
    """Wait before the next attempt after so many failures. Raises InputError if there is none, or
    it would not help.
    """
    # "not in the local cache", of a file that could not be downloaded
    cause = (
        error.__cause__ if isinstance(error, LocalEntryNotFoundError) and error.__cause__ else error
    )
    status = getattr(getattr(cause, "response", None), "status_code", None)
    is_refused = status is not None and 400 <= status < 500 and status not in (408, 429)
    described = f"{type(cause).__name__}: {first_line(cause)}"
    if is_refused or isinstance(cause, FileNotFoundError) or failures > download.retries:
        raise InputError(
            f"{what}: could not be read from the Hugging Face Hub after {failures - 1} retries"
            f" ({described}); check "
            "network, repository, revision and token, or use local files (data.source: parquet,"
            " model.folder)."
        ) from error
    seconds = min(download.delay * 2 ** (failures - 1), MAX_DELAY)
    print(f"{described}: retrying in {seconds:g} s", file=sys.stderr, flush=True)
    time.sleep(seconds)
