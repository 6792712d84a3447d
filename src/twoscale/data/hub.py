"""Parquet files of a data set on the Hugging Face Hub, read by ranges over a network that fails.

One request of `dataset_info` says which commit a revision is, what subsets the data set has and which files;
`datasets` would list every file of the repository for that, give its requests no time limit, and fall back
silently on another revision that happens to be cached. All requests go through the session of
`huggingface_hub`, so its end point, tokens, proxies and offline mode hold; nothing is written to disk.
"""

import io
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeVar

import huggingface_hub
from fsspec.utils import glob_translate
from httpx2 import HTTPError, TransportError
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from twoscale.errors import InputError, first_line
from twoscale.config import DownloadConfig

BUFFER = 2**22  # bytes read ahead of what the parquet reader asks for
LARGEST_RANGE = 2**23  # bytes of one request, so that a failure repeats little
LONGEST_WISH = 3600.0  # seconds
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})

Answer = TypeVar("Answer")


class ShortAnswerError(Exception):
    """The server sent another number of bytes than it was asked for, and called that complete."""


def persistently(request: Callable[[], Answer], limits: DownloadConfig) -> Answer:
    """The answer to `request`, which is tried again while what goes wrong may pass.

    The delay doubles from `limits.delay` to `limits.max_delay`, and is never shorter than what the server
    asks for. Raises the error of the last attempt.
    """
    delay = limits.delay
    for left in range(limits.retries, -1, -1):
        try:
            return request()
        except (HTTPError, ShortAnswerError) as error:
            if not left or not _may_pass(error):
                raise
            wait = max(delay, _retry_after(error))
            print(f"{_said(error)}: next attempt in {wait:g} s, {left} left", file=sys.stderr, flush=True)
        time.sleep(wait)
        delay = min(2 * delay, limits.max_delay)
    raise AssertionError("the last attempt returns or raises")


def _may_pass(error: Exception) -> bool:
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in TRANSIENT
    return isinstance(error, (TransportError, ShortAnswerError))


def _retry_after(error: Exception) -> float:
    """Seconds that the server asks to wait, as a number or until a date; 0 where it asks for none.

    A date against a clock that is wrong may be far away: no more than an hour is believed.
    """
    asked = error.response.headers.get("retry-after", "") if isinstance(error, HfHubHTTPError) else ""
    if asked.isdigit():
        return min(float(asked), LONGEST_WISH)
    try:
        until = parsedate_to_datetime(asked)
    except ValueError:
        return 0.0
    return min(max(0.0, until.timestamp() - time.time()), LONGEST_WISH)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


class Subset(NamedTuple):
    """Files of a subset, sorted by name, at one commit."""

    repository: str
    commit: str
    files: tuple[str, ...]


def resolve(repository: str, subset: str, revision: str, limits: DownloadConfig) -> Subset:
    """The training files of a subset at a branch, tag or commit.

    Raises InputError where the Hub cannot be reached, or has no such data set, revision or subset.
    """
    what = f"{repository}, subset {subset}, revision {revision}"
    info = reading(
        what,
        lambda: huggingface_hub.HfApi().dataset_info(
            repository, revision=revision, timeout=limits.timeout, expand=["sha", "cardData", "siblings"]
        ),
        limits,
    )
    configurations = {entry["config_name"]: entry for entry in (info.card_data or {}).get("configs") or []}
    if subset not in configurations:
        raise InputError(
            f"config key data.subset: found {subset!r}, expected one of the subsets of {repository}: "
            f"{', '.join(configurations) or 'none'}."
        )
    accepted = re.compile("|".join(map(glob_translate, train_patterns(configurations[subset]))))
    names = sorted(sibling.rfilename for sibling in info.siblings or [] if accepted.match(sibling.rfilename))
    files = tuple(name for name in names if name.endswith(".parquet"))
    if not files:
        raise InputError(f"{what}: found no parquet file of the split train, expected at least one.")
    return Subset(repository, info.sha, files)


def train_patterns(configuration: Mapping[str, Any]) -> Sequence[str]:
    """Patterns of the split `train` in one entry of a data set card's `configs`, in any form that a card may have."""
    found = configuration.get("data_files", [])
    splits = [found] if isinstance(found, (str, Mapping)) else found
    patterns: list[str] = []
    for split in splits:
        if isinstance(split, str):
            patterns.append(split)
        elif split.get("split", "train") == "train":
            patterns += [split["path"]] if isinstance(split["path"], str) else split["path"]
    if not patterns:
        raise InputError(
            f"config key data.subset: {configuration['config_name']!r} names no data files of the split train, "
            "expected a subset that does."
        )
    return patterns


def reading(what: str, request: Callable[[], Answer], limits: DownloadConfig) -> Answer:
    """The answer to `request`; a failure that stays is an InputError about `what`."""
    try:
        return persistently(request, limits)
    except (HTTPError, OfflineModeIsEnabled, ShortAnswerError) as error:
        raise InputError(
            f"{what}: could not be read from the Hugging Face Hub, with {limits.retries} retries for what may pass "
            f"({_said(error)}); expected a data set within reach of the network (a private one needs a token), or "
            "data.source: parquet for local files."
        ) from error


class RemoteFile(io.RawIOBase):
    """A file of a subset as a read-only stream with positions; each read is a range request.

    `version` is the entity tag that the Hub gives the content. A file whose tag or size changes between two
    ranges is refused, and so is one whose tag is not `expected`.
    """

    def __init__(self, subset: Subset, name: str, limits: DownloadConfig, expected: str | None = None) -> None:
        self.what = f"{subset.repository}/{name}"
        self.url = huggingface_hub.hf_hub_url(subset.repository, name, repo_type="dataset", revision=subset.commit)
        self.limits = limits
        self.position = 0
        self.version: str | None = expected
        self.size: int | None = None
        self._range(0, 1)

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
        wanted = min(len(buffer), self.size - self.position, LARGEST_RANGE)
        if wanted <= 0:
            return 0
        buffer[:wanted] = self._range(self.position, wanted)
        self.position += wanted
        return wanted

    def _range(self, start: int, count: int) -> bytes:
        return reading(self.what, lambda: self._request(start, count), self.limits)

    def _request(self, start: int, count: int) -> bytes:
        wanted = f"bytes={start}-{start + count - 1}"
        headers = build_hf_headers() | {"Range": wanted, "Accept-Encoding": "identity"}
        answer = get_session().get(self.url, headers=headers, timeout=self.limits.timeout)
        hf_raise_for_status(answer)
        self._check_version(answer)
        if answer.status_code != 206 or len(answer.content) != count:
            raise ShortAnswerError(
                f"status {answer.status_code} with {len(answer.content)} bytes, expected 206 with {count}"
            )
        return answer.content

    def _check_version(self, answer) -> None:
        """Compare what the Hub says of the content, in its own answer and not in that of its store, with before."""
        linked = (response.headers.get("x-linked-etag") for response in [*answer.history, answer])
        version = next(filter(None, linked), None) or answer.headers.get("etag")
        size = int(answer.headers.get("content-range", "/-1").rpartition("/")[2])
        expected = (self.version or version, self.size if self.size is not None else size)
        if (version, size) != expected:
            raise InputError(
                f"{self.what}: found version {version} of {size} bytes, expected {expected[0]} of {expected[1]}, the "
                "one that reading began with: the file was replaced; remove the folder of parts to begin again."
            )
        self.version, self.size = expected


def open_file(subset: Subset, name: str, limits: DownloadConfig, expected: str | None = None) -> io.BufferedReader:
    """A file of the subset for the parquet reader; its `raw` is a RemoteFile."""
    return io.BufferedReader(RemoteFile(subset, name, limits, expected), BUFFER)
