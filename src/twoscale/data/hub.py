"""Text and models of the Hugging Face Hub, at one commit.

`huggingface_hub` and `datasets` use the endpoint, token, proxies and offline mode of the user's
shell. In addition, a file whose bytes arrive truncated is opened again at the row that comes next,
and every error is one sentence.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

from httpx2 import HTTPError
from huggingface_hub import HfFileSystem, is_offline_mode, snapshot_download
from huggingface_hub.errors import FileMetadataError
from pyarrow import ArrowException

from twoscale.base import InputError, first_line, mismatch, replacing
from twoscale.config import DownloadConfig
from twoscale.data.text import Document, rows

# Of an answer that is not the Hub's, such as a network's login page.
_FOREIGN = (FileMetadataError, json.JSONDecodeError, KeyError)
# Of a request, or of content that is cut.
_FAILURES = (HTTPError, OSError, EOFError, ArrowException, *_FOREIGN)
_MAX_DELAY = 60.0  # seconds between two attempts

# What is read of the repository of a model. Pickled weights and Python files are not.
_MODEL_FILES = (
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
    """The training files of a subset at a branch, tag or commit, as the data set's card names them.

    Raises InputError if there is no such subset, or it has no parquet file.
    """
    from datasets import load_dataset_builder

    what = f"{repository}, subset {subset}, revision {revision}"
    address = f"hf://datasets/{repository}"  # without hf:// a folder of this name would be read

    def request() -> Any:
        # in the user's cache, `datasets` would find what it has read before a failure
        with TemporaryDirectory() as cache:
            return load_dataset_builder(address, subset, cache_dir=cache, revision=revision)

    try:
        builder = _with_retries(what, request, download)
    except ValueError as error:  # of a name that is no subset
        found = f"{subset!r} in {repository}: {first_line(error)}"
        raise InputError(f"config key data.subset: found {found}.") from error
    files = (builder.config.data_files or {}).get("train", [])
    names = sorted(file for file in files if file.endswith(".parquet"))
    if not names:
        raise mismatch(what, "no parquet file of the split train", "at least one")
    # hf://datasets/owner/name@commit/path
    paths = [name.partition("@")[2].partition("/") for name in names]
    return Subset(repository, paths[0][0], tuple(path for _, _, path in paths))


def documents(
    subset: Subset, name: str, first: int, download: DownloadConfig
) -> Iterator[Document]:
    """Documents of a file from row `first` on; continues where a request fails."""
    what = f"{subset.repository}/{name}"
    address = f"datasets/{subset.repository}@{subset.commit}/{name}"
    failures = 0
    while True:
        try:
            with HfFileSystem().open(address, "rb") as opened:
                for document in rows(opened, what, name.rpartition("/")[2], first):
                    yield document
                    first = document.row + 1
                    failures = 0  # only attempts without progress count
                return
        except _FAILURES as error:
            failures += 1
            _wait(what, error, failures, download)
        except ValueError as error:
            problem = first_line(error)
            raise InputError(f"{what}: cannot be read as a parquet file ({problem}).") from error


def fetch_model(repository: str, revision: str, folder: Path, download: DownloadConfig) -> None:
    """Download a model at a commit into `folder`, and write its manifest last.

    What is there already is kept.
    """
    what = f"{repository}, revision {revision}"
    options: dict[str, Any] = {"revision": revision, "local_dir": folder}
    options["allow_patterns"] = list(_MODEL_FILES)
    _with_retries(what, lambda: snapshot_download(repository, **options), download)
    paths = sorted({path for pattern in _MODEL_FILES for path in folder.glob(pattern)})
    files = {path.name: path.stat().st_size for path in paths}
    has_weights = any(name.endswith(".safetensors") for name in files)
    if not has_weights or "config.json" not in files:
        found = ", ".join(files) or "none of the files of a model"
        raise mismatch(what, found, "config.json and safetensors files")
    manifest = {"repository": repository, "revision": revision, "files": files}
    with replacing(folder / MANIFEST) as temporary:
        temporary.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _with_retries(what: str, request: Callable[[], T], download: DownloadConfig) -> T:
    failures = 0
    while True:
        try:
            return request()
        except _FAILURES as error:
            failures += 1
            _wait(what, error, failures, download)


def _wait(what: str, error: Exception, failures: int, download: DownloadConfig) -> None:
    """Wait before the next attempt after so many failures.

    Raises InputError if there is none, or it would not help.
    """
    cause = _cause(error)
    status = getattr(getattr(cause, "response", None), "status_code", 0)
    is_refused = 400 <= status < 500 and status not in (408, 429)  # timeout, too many requests
    is_foreign = isinstance(cause, _FOREIGN)
    described = f"{type(cause).__name__}: {first_line(cause)}"
    if is_foreign:
        described += ": not the Hub's answer; a login page?"
    would_not_help = is_refused or is_foreign or isinstance(cause, FileNotFoundError)
    if would_not_help or is_offline_mode() or failures > download.retries:
        raise InputError(
            f"{what}: could not be read from the Hugging Face Hub after {failures - 1} retries"
            f" ({described}); check network, repository, revision and token, or use local files"
            f" (data.source: parquet, model.folder)."
        ) from error
    # twice as long after each failure
    seconds = min(download.delay * 2 ** (failures - 1), _MAX_DELAY)
    print(f"{described}: retrying in {seconds:g} s", file=sys.stderr, flush=True)
    time.sleep(seconds)


def _cause(error: BaseException) -> BaseException:
    """The failed request that `datasets` and `huggingface_hub` describe as a missing file."""
    link: BaseException | None = error
    while link is not None:
        is_request = isinstance(link, (HTTPError, OSError))
        is_wrapper = isinstance(link, FileNotFoundError)
        if getattr(link, "response", None) is not None or (is_request and not is_wrapper):
            return link
        link = link.__cause__ or link.__context__
    return error
