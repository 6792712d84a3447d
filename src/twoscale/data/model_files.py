"""The files of a published model, downloaded from the Hugging Face Hub at one commit.

A download that is cut continues where it stopped: a file grows under the name `<name>.part`, with a note of the
content's entity tag, and is renamed when it is whole. Nothing is unpickled, and no code of the repository is fetched.
"""

import json
import shutil
from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
from huggingface_hub.utils import build_hf_headers

from twoscale.base import InputError, meter, replacing
from twoscale.config import DownloadConfig
from twoscale.data.hub import MAX_RANGE, RemoteFile, Subset, checked_names, fetch, get, with_form

# What is read of a repository. Pickled weights and Python files are not.
PATTERNS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
)
MANIFEST = "published.json"


def fetch_model(repository: str, revision: str, folder: Path, download: DownloadConfig) -> list[Path]:
    """Download a model at a commit into `folder`, and write its manifest last.

    Files that are there already from the same commit are kept.

    Raises:
        InputError: if the repository or the revision does not exist, the Hub cannot be reached, the repository has no
            safetensors files, or the disk is too small.
    """
    files = resolve_model(repository, revision, download)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [
        (_fetch_weights if name.endswith(".safetensors") else _fetch_small)(files, name, folder, download)
        for name in files.files
    ]
    manifest = {"repository": repository, "revision": files.commit, "files": {p.name: p.stat().st_size for p in paths}}
    with replacing(folder / MANIFEST) as temporary:
        temporary.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return [*paths, folder / MANIFEST]


def resolve_model(repository: str, revision: str, download: DownloadConfig) -> Subset:
    """The files to download at a commit."""
    what = f"{repository}, revision {revision}"
    info = fetch(
        what,
        lambda: with_form(
            huggingface_hub.HfApi().model_info(
                repository, revision=revision, timeout=download.timeout, expand=["sha", "siblings"]
            )
        ),
        download,
    )
    names = sorted(sibling.rfilename for sibling in info.siblings or [])
    at_top = (name for name in names if "/" not in name)  # names become names of local files
    wanted = tuple(name for name in at_top if any(fnmatch(name, pattern) for pattern in PATTERNS))
    if "config.json" not in wanted or not any(name.endswith(".safetensors") for name in wanted):
        raise InputError(f"{what}: found {', '.join(names) or 'no files'}, expected config.json and safetensors files.")
    return Subset(repository, info.sha, checked_names(what, wanted), "model")


def _fetch_small(files: Subset, name: str, folder: Path, download: DownloadConfig) -> Path:
    """Download one file with one request."""
    url = huggingface_hub.hf_hub_url(files.repository, name, revision=files.commit)
    content = fetch(f"{files.repository}/{name}", lambda: get(url, download, build_hf_headers()).content, download)
    with replacing(folder / name) as temporary:
        temporary.write_bytes(content)
    return folder / name


def _fetch_weights(files: Subset, name: str, folder: Path, download: DownloadConfig) -> Path:
    """Download one file by ranges, from where an earlier attempt stopped."""
    path, part, note = (folder / f"{name}{suffix}" for suffix in ("", ".part", ".tag"))
    remote = RemoteFile(files, name, download)
    known = note.read_text(encoding="utf-8") if note.is_file() else None
    if known != remote.version:  # the file is new, or of another commit
        for stale in (path, part):
            stale.unlink(missing_ok=True)
        note.write_text(str(remote.version), encoding="utf-8")
    if path.is_file() and path.stat().st_size == remote.size:
        return path
    _append(remote, part)
    part.replace(path)
    return path


def _append(remote: RemoteFile, part: Path) -> None:
    """Continue the file `part` up to the size of `remote`."""
    start = remote.seek(part.stat().st_size if part.is_file() else 0)
    rest, free = remote.size - start, shutil.disk_usage(part.parent).free
    if rest > free:
        raise InputError(
            f"{part}: found {free / 1e9:.1f} GB of free disk space, expected {rest / 1e9:.1f} GB for the rest of "
            f"{remote.what}."
        )
    label = f"download {remote.what}"
    with part.open("ab") as file, meter(label, remote.size, "bytes", initial=start) as bar:
        while chunk := remote.read(MAX_RANGE):
            file.write(chunk)
            bar.update(len(chunk))
