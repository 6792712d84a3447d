"""Download of GPT-2's tokenizer into one file, so that no later job needs the network.

tiktoken downloads without a time limit, also where a file in its cache has another content. This module puts the two
files with the right content into tiktoken's cache instead.
"""

import base64
import hashlib
import os
import tempfile
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path

import tiktoken
from httpx2 import HTTPError

from twoscale.base import InputError, first_line, replacing, sha256
from twoscale.config import DownloadConfig
from twoscale.data.hub import get, with_retries

# address of a file -> its SHA-256, both as in tiktoken_ext/openai_public.py
FILES = {
    f"https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/{name}": digest
    for name, digest in {
        "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
        "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    }.items()
}


def fetch(download: DownloadConfig) -> bytes:
    """Download GPT-2's tokenizer, or read it from the folder that TIKTOKEN_CACHE_DIR names.

    Returns:
        The merges in tiktoken's format: one line per token, the token in Base64 and its rank.

    Raises:
        InputError: if the files are not in the cache and cannot be downloaded, or have other hashes.
    """
    try:
        with _cache() as folder:
            for url, digest in FILES.items():
                path = folder / hashlib.sha1(url.encode()).hexdigest()  # the file's name in tiktoken's cache
                if not path.is_file() or sha256(path) != digest:
                    content = with_retries(lambda url=url: get(url, download).content, download)  # type: ignore[misc]
                    if (found := hashlib.sha256(content).hexdigest()) != digest:
                        raise ValueError(f"{url} has the SHA-256 {found[:12]}…, not {digest[:12]}…")
                    with replacing(path) as temporary:
                        temporary.write_bytes(content)
            ranks = tiktoken.get_encoding("gpt2")._mergeable_ranks
    except (HTTPError, OSError, ValueError) as error:
        raise InputError(
            f"config key tokenizer.name: gpt2 is not in tiktoken's cache and could not be downloaded "
            f"({type(error).__name__}: {first_line(error)}); connect to the network once, or set TIKTOKEN_CACHE_DIR "
            "to a folder that contains it."
        ) from error
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in sorted(ranks.items(), key=itemgetter(1)))
    return b"".join(lines)


@contextmanager
def _cache():
    """The user's cache of tiktoken, or a temporary one, because tiktoken's default is outside the project."""
    if configured := os.environ.get("TIKTOKEN_CACHE_DIR"):
        yield Path(configured)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TIKTOKEN_CACHE_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ["TIKTOKEN_CACHE_DIR"]
