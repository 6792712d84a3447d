"""Files of a repository on the Hugging Face Hub, read by range requests over an unreliable network.

One request of `dataset_info` returns the commit of a revision, the subsets of the data set and its files. All requests
use the session of `huggingface_hub`, so its endpoint, tokens, proxies and offline mode apply. Nothing is written to
disk. The library `datasets` fails tests of this module that docs/text.md ("FineWeb and datasets") lists.
"""

import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any, NamedTuple, TypeVar

import huggingface_hub
from httpx2 import HTTPError, Response, SyncByteStream, TransportError
from huggingface_hub import CardData
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status
from pydantic import Field

from twoscale.base import InputError, first_line
from twoscale.config import DownloadConfig
from twoscale.json import checked

BUFFER = 2**22  # bytes read ahead of the parquet reader's position
MAX_RANGE = 2**23  # bytes of one request, so that a failure repeats little
MAX_RESPONSE = 2**27  # bytes of one response: a listing, or a small file such as a tokenizer
ERROR_BYTES = 2**16  # bytes of a response beyond the range that was requested, such as the page of an error
MAX_GLOBS = 100  # patterns with wildcards of one subset
MAX_RETRY_AFTER = 3600.0  # seconds
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})

Split = dict[str, str | list[str]]  # with the keys path and split
DataFiles = str | Split | list[str | Split] | None  # of a subset in a data set card

T = TypeVar("T")


class ShortResponseError(Exception):
    """The server sent fewer bytes than requested, in a response that is complete by its own headers."""


class WrongResponseError(Exception):
    """The server sent another response than requested, and would again: more bytes, the whole file, or compressed."""


# --- requests


def fetch(what: str, request: Callable[[], T], download: DownloadConfig) -> T:
    """The result of `request`, with retries.

    Raises:
        InputError: about `what`, if the last attempt fails or the error is permanent.
    """
    _bound_responses()
    try:
        return with_retries(request, download)
    except UnicodeEncodeError:  # the only header with text of the user; the error's message has the token
        raise InputError(
            "the user's token for the Hugging Face Hub (HF_TOKEN): found a character that is not ASCII; "
            "check the token."
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        # the client and the parsers below it raise these for an answer that has not the form that they expect
        raise InputError(
            f"{what}: found a response that is not from a Hugging Face Hub ({_describe(error)}); "
            "check the variable HF_ENDPOINT and your proxy."
        ) from error
    except (HTTPError, OfflineModeIsEnabled, ShortResponseError, WrongResponseError) as error:
        raise InputError(
            f"{what}: could not be read from the Hugging Face Hub after up to {download.retries} retries "
            f"({_describe(error)}); check the network, repository and revision (a private repository "
            "needs a token), or use local files: data.source: parquet, or model.folder."
        ) from error


class _BoundedStream(SyncByteStream):
    """The bytes of a response, up to a limit. Raises WrongResponseError for the first byte beyond."""

    def __init__(self, stream: SyncByteStream, limit: int) -> None:
        self.stream, self.limit = stream, limit

    def __iter__(self) -> Iterator[bytes]:
        received = 0
        for chunk in self.stream:
            received += len(chunk)
            if received > self.limit:
                raise WrongResponseError(f"found more than {self.limit} bytes, the most that this response may have")
            yield chunk

    def close(self) -> None:
        self.stream.close()


def _bound_responses() -> None:
    """Bound every response of the session of `huggingface_hub`, also redirects, listings and errors."""
    session = get_session()
    if _bound not in session.event_hooks["response"]:
        session.event_hooks["response"].append(_bound)
        session.headers["Accept-Encoding"] = "identity"  # a few compressed bytes can become many


def _bound(response: Response) -> None:
    """Hook of the session: called with every response before its content is read."""
    encoding = response.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise WrongResponseError(f"found the content encoding {encoding}, expected none")
    response.stream = _BoundedStream(response.stream, response.request.extensions.get("max_bytes", MAX_RESPONSE))  # type: ignore[arg-type]


def get(
    url: str, download: DownloadConfig, headers: Mapping[str, str] | None = None, max_bytes: int = MAX_RESPONSE
) -> Response:
    """The answer to one request, which has to report success."""
    extensions = {"max_bytes": max_bytes}
    response = get_session().get(url, headers=headers, timeout=download.timeout, extensions=extensions)
    hf_raise_for_status(response)
    return response


def get_address(url: str, max_bytes: int, download: DownloadConfig) -> bytes:
    """The content at an address that is not the Hub's: with the same limits and retries, without the user's token.

    Raises:
        InputError: if it cannot be read, or has more bytes than `max_bytes`.
    """
    _bound_responses()
    try:
        return with_retries(lambda: get(url, download, max_bytes=max_bytes).content, download)
    except (HTTPError, OfflineModeIsEnabled, WrongResponseError, ValueError) as error:
        raise InputError(
            f"{url}: could not be read after up to {download.retries} retries ({_describe(error)}), "
            f"expected a file of at most {max_bytes} bytes; check the network."
        ) from error


def with_retries(request: Callable[[], T], download: DownloadConfig) -> T:
    """The result of `request`, which is repeated after transient errors.

    The delay doubles from `download.delay` to `download.max_delay` seconds, and is at least what the server requests.

    Raises:
        Exception: the error of the last attempt, or the first permanent one.
    """
    delay = download.delay
    for remaining in range(download.retries, -1, -1):
        try:
            return request()
        except (HTTPError, ShortResponseError) as error:
            if not remaining or not _is_transient(error):
                raise
            wait = max(delay, _retry_after(error))
            print(f"{_describe(error)}: retrying in {wait:g} s, {remaining} attempts left", file=sys.stderr, flush=True)
        time.sleep(wait)
        delay = min(2 * delay, download.max_delay)
    raise AssertionError("the last attempt returns or raises")


def _is_transient(error: Exception) -> bool:
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in TRANSIENT
    return isinstance(error, (TransportError, ShortResponseError))


def _retry_after(error: Exception) -> float:
    """Seconds until the server accepts a retry, given as a number or a date; 0 if the header is missing or invalid.

    The result is capped at MAX_RETRY_AFTER, because a wrong clock makes a date seem far away.
    """
    value = error.response.headers.get("retry-after", "") if isinstance(error, HfHubHTTPError) else ""
    if value.isdigit():
        return min(float(value), MAX_RETRY_AFTER)
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    return min(max(0.0, until.timestamp() - time.time()), MAX_RETRY_AFTER)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


# --- the files of a subset


class Subset(NamedTuple):
    """Files of a repository at one commit, sorted by name: a subset of a data set, or a model."""

    repository: str
    commit: str
    files: tuple[str, ...]
    kind: str = "dataset"


def resolve(repository: str, subset: str, revision: str, download: DownloadConfig) -> Subset:
    """The training files of a subset at a branch, tag or commit.

    Raises:
        InputError: if the Hub cannot be reached, or the data set, revision or subset does not exist.
    """
    what = f"{repository}, subset {subset}, revision {revision}"
    info = fetch(
        what,
        lambda: with_form(
            huggingface_hub.HfApi().dataset_info(
                repository, revision=revision, timeout=download.timeout, expand=["sha", "cardData", "siblings"]
            )
        ),
        download,
    )
    # The card lists the subsets under `configs`, each with glob patterns; `siblings` lists the repository's files.
    card = info.card_data
    configurations = card_subsets(repository, card.get("configs") if isinstance(card, CardData) else card)
    if subset not in configurations:
        raise InputError(
            f"config key data.subset: found {subset!r}, expected one of the subsets of {repository}: "
            f"{', '.join(configurations) or 'none'}."
        )
    names = matching([sibling.rfilename for sibling in info.siblings or []], train_patterns(configurations[subset]))
    files = tuple(name for name in names if name.endswith(".parquet"))
    if not files:
        raise InputError(f"{what}: found no parquet file of the split train, expected at least one.")
    return Subset(repository, info.sha, checked_names(what, files))


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The names that match a pattern, sorted."""
    plain = {pattern for pattern in patterns if not any(sign in pattern for sign in "*?[")}
    globs = sorted(set(patterns) - plain)
    if len(globs) > MAX_GLOBS:
        raise InputError(
            f"config key data.subset: found {len(globs)} patterns with wildcards in the card of the data set, expected "
            f"at most {MAX_GLOBS}."
        )
    return sorted(name for name in names if name in plain or any(matches(name, pattern) for pattern in globs))


def matches(name: str, pattern: str) -> bool:
    """Whether a file name matches a pattern of a data set's card, in time that is polynomial in both lengths.

    A component of the path may have the wildcards of `fnmatch`; the component ** matches any number of components,
    as in `fsspec`.
    """
    components, parts = name.split("/"), pattern.split("/")
    reached = {0}  # numbers of leading components that the parts so far match
    for number, part in enumerate(parts, start=1):
        if part == "**":
            reached = set(range(min(reached) + (number == len(parts)), len(components) + 1))
        else:
            reached = {i + 1 for i in reached if i < len(components) and fnmatchcase(components[i], part)}
        if not reached:
            return False
    return len(components) in reached


def checked_names(what: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of files to request. Raises InputError for one that leaves its repository or cannot be printed."""
    for name in names:
        is_inside = "\\" not in name and not {"", ".", ".."} & set(name.split("/"))
        if not is_inside or not name.isprintable():
            raise InputError(
                f"{what}: found a file named {name!r}, expected a path inside the repository with "
                "printable characters only."
            )
    return names


def with_form(info: Any) -> Any:
    """The Hub's description of a repository; ValueError if its commit or the names of its files are invalid."""
    checked(info.sha, Annotated[str, Field(pattern=r"^[0-9a-f]{40,64}$")])
    checked([sibling.rfilename for sibling in info.siblings or []], list[str])
    return info


def card_subsets(repository: str, configs: Any) -> dict[str, Mapping[str, Any]]:
    """Name of each subset -> its entry in `configs` of a data set card; InputError for a card of another form."""
    try:
        entries = checked([] if configs is None else configs, list[dict[str, Any]])
        names = checked([entry.get("config_name") for entry in entries], list[str])
    except ValueError as error:
        raise InputError(
            f"{repository}: the configs in the data set card cannot be read ({error}), expected a list with "
            "the config_name and the data_files of each subset."
        ) from error
    return dict(zip(names, entries, strict=True))


def train_patterns(configuration: Mapping[str, Any]) -> Sequence[str]:
    """Glob patterns of the split `train` in one entry of `configs` of a data set card.

    The Hub accepts five forms of `data_files`: a pattern, a list of patterns, a mapping with `path` and optionally
    `split`, a list of these, and in each mapping a pattern or a list of patterns.
    """
    try:
        data_files: Any = checked(configuration.get("data_files"), DataFiles) or []
    except ValueError as error:
        raise InputError(
            f"config key data.subset: {configuration['config_name']!r} names unreadable data files ({error}), "
            "expected patterns, or mappings with path and split."
        ) from error
    splits = [data_files] if isinstance(data_files, (str, Mapping)) else data_files
    patterns: list[str] = []
    for split in splits:
        if isinstance(split, str):
            patterns.append(split)
        elif split.get("split", "train") == "train":
            path = split.get("path", [])
            patterns += [path] if isinstance(path, str) else path
    if not patterns:
        raise InputError(
            f"config key data.subset: {configuration['config_name']!r} names no data files for the split train, "
            "expected a subset that does."
        )
    return patterns


class RemoteFile(io.RawIOBase):
    """A file of a subset as a seekable read-only stream, where each read is a range request.

    `version` is the entity tag that the Hub gives the content.

    Args:
        subset: Repository and commit.
        name: File in the repository.
        download: Time limit and retries.
        expected: Entity tag that the file must have; None accepts any.

    Raises:
        InputError: if the file cannot be read, or its tag or size differs from `expected` or changes between requests.
    """

    def __init__(self, subset: Subset, name: str, download: DownloadConfig, expected: str | None = None) -> None:
        self.what = f"{subset.repository}/{name}"
        self.url = huggingface_hub.hf_hub_url(subset.repository, name, repo_type=subset.kind, revision=subset.commit)
        self.download = download
        self.position = 0
        self.version: str | None = expected
        self.size = -1  # unknown
        self._range(0, 1)  # sets version and size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        return self.position

    def readinto(self, buffer) -> int:
        count = min(len(buffer), self.size - self.position, MAX_RANGE)
        if count <= 0:
            return 0
        buffer[:count] = self._range(self.position, count)
        self.position += count
        return count

    def _range(self, start: int, count: int) -> bytes:
        return fetch(self.what, lambda: self._request(start, count), self.download)

    def _request(self, start: int, count: int) -> bytes:
        headers = build_hf_headers() | {"Range": f"bytes={start}-{start + count - 1}", "Accept-Encoding": "identity"}
        response = get(self.url, self.download, headers, count + ERROR_BYTES)
        if response.status_code != 206 or len(response.content) > count:
            raise WrongResponseError(
                f"found the status {response.status_code} with {len(response.content)} bytes, expected 206 with "
                f"{count}; the server, or a proxy before it, ignores ranges"
            )
        self._check_version(response)
        if len(response.content) < count:
            raise ShortResponseError(f"found {len(response.content)} bytes, expected {count}")
        return response.content

    def _check_version(self, response) -> None:
        """Set entity tag and size from the first response, and compare later responses with them."""
        # The Hub redirects to its store. Only the Hub's own response has `x-linked-etag`, the tag of the content; the
        # store's `etag` may differ between requests. A Hub without a store sends the content's `etag` itself.
        linked = (answer.headers.get("x-linked-etag") for answer in [*response.history, response])
        version = next(filter(None, linked), None) or response.headers.get("etag")
        size = int(response.headers.get("content-range", "/-1").rpartition("/")[2])
        expected = (self.version or version, self.size if self.size >= 0 else size)
        if (version, size) != expected:
            raise InputError(
                f"{self.what}: found version {version} of {size} bytes, expected {expected[0]} of {expected[1]}, the "
                "version read before; the file was replaced, so remove the folder of parts to start again."
            )
        self.version, self.size = expected


def open_file(subset: Subset, name: str, download: DownloadConfig, expected: str | None = None) -> io.BufferedReader:
    """Open a file of the subset for the parquet reader; `raw` of the result is the RemoteFile."""
    return io.BufferedReader(RemoteFile(subset, name, download, expected), BUFFER)
