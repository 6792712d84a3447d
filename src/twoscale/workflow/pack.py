"""A pack for a machine with a GPU and without a network: wheels, tokens, a config and a script. See
docs/gpu.md.

The folder has the wheels of what a machine with PyTorch lacks, the compressed files that training
starts from under their paths in the checkout, the config, `pack.sh`, and the commit of the
checkout.
"""

import hashlib
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from twoscale.base import InputError, replacing, sha256
from twoscale.config import PROJECT
from twoscale.report import release
from twoscale.workflow.data_files import trains
from twoscale.workflow.params import SOURCE_DIGEST
from twoscale.workflow.runs import Runs

CONFIG, MANIFEST, FILES, WHEELS = "config.yaml", "pack.json", "files", "wheels"
MOST_BYTES = 50_000_000
_NEEDED = ("snakemake", "pydantic")  # with all that they need
_SOURCE_ONLY = ("connection_pool", "stopit")  # of Snakemake's needs those without a wheel
_UNUSED = ("pulp",)  # the solvers of a scheduler that the pack does not use
_NEWEST_GLIBC = 39
_CODE = (
    "Snakefile",
    "scripts/*.py",
    "src/**/*.py",
    "workflow/rules/*.smk",
    "workflow/presets/*.yaml",
)


def make(folder: Path, user: dict[str, Any], python: str) -> str:
    """Write the pack of a run in place of an earlier one; a sentence. The workflow makes tokens
    that are missing.

    `user` are the user's layers of the config, `python` is the version on the other machine, such
    as "3.12". Raises InputError for a run that cannot be packed, and where Snakemake or pip fails.
    """
    runs = Runs(user, PROJECT / "scripts")
    if not trains(runs.config):
        raise InputError(
            f"run {runs.selected}: found a published model, but only trained models can be packed."
        )
    if runs.config.train.processes > 1:
        raise InputError(
            f"config key train.processes: found {runs.config.train.processes}, expected 1 for a"
            f" pack."
        )
    if folder.exists() and any(folder.iterdir()) and not (folder / CONFIG).exists():
        raise InputError(
            f"{folder}: found files that are no pack, expected an empty folder or an earlier pack."
        )
    # which is empty or an earlier pack
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(yaml.safe_dump(user), encoding="utf-8")
    files = _training_files(runs)
    _call("snakemake", "--cores", "all", "--configfile", str(folder / CONFIG), "--", *files)
    _download_wheels(folder / WHEELS, python)
    for file in [*files, *record_of_text(runs)]:
        packed = folder / FILES / f"{file}.xz"
        packed.parent.mkdir(parents=True, exist_ok=True)
        with Path(file).open("rb") as source, lzma.open(packed, "wb") as target:
            shutil.copyfileobj(source, target)
    shutil.copy(PROJECT / "scripts" / "pack.sh", folder)
    facts = {**release.checkout(PROJECT), "code": code_digest(PROJECT)}
    (folder / MANIFEST).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    size = sum(path.stat().st_size for path in folder.rglob("*"))
    if size > MOST_BYTES:
        found = f"found {size / 1e6:.1f} MB, expected at most {MOST_BYTES / 1e6:g} MB"
        raise InputError(f"{folder}: {found}; a smaller data.train_tokens makes a smaller pack.")
    return f"{folder}: {size / 1e6:.1f} MB, for a checkout of commit {facts['commit']}."


def _training_files(runs: Runs) -> list[str]:
    """The files that the selected run is trained and analysed from: tokens, and the tokenizer if it
    has a file.
    """
    run = SimpleNamespace(run=runs.selected)
    tokenizer = runs.data.tokenizer_file(run)
    tokens = [runs.data.data_file(name)(run) for name in ("train.bin", "val.bin", "tokens.json")]
    return tokens + ([tokenizer] if tokenizer else [])


def record_of_text(runs: Runs) -> list[str]:
    """The file by which the other machine knows the local text that the tokens are of, if the run
    has one.
    """
    record = runs.data.data_file(SOURCE_DIGEST)(SimpleNamespace(run=runs.selected))
    return [record] if Path(record).is_file() else []


def unpack(folder: Path) -> None:
    """Decompress the files of a pack to their paths in the checkout; files that are there stay.

    All get the same time, by which Snakemake judges that none was made from a newer one.
    """
    packed_at = (folder / MANIFEST).stat().st_mtime
    for packed in sorted((folder / FILES).rglob("*.xz")):
        path = packed.relative_to(folder / FILES).with_suffix("")
        if path.exists():
            continue
        with replacing(path) as temporary:
            with lzma.open(packed) as source, temporary.open("wb") as target:
                shutil.copyfileobj(source, target)
            os.utime(temporary, (packed_at, packed_at))


def code_digest(project: Path) -> str:
    """SHA-256 of the code of a checkout, which tells without git whether it is the code of the
    pack's commit.
    """
    found = sorted({path for pattern in _CODE for path in project.glob(pattern)})
    lines = (f"{path.relative_to(project)} {sha256(path)}" for path in found)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _download_wheels(folder: Path, python: str) -> None:
    """Download the wheels of Snakemake and pydantic and of what they need, in the versions of
    requirements.txt, for Linux on x86-64.
    """
    pins = re.findall(
        rf"^(?:{'|'.join(_NEEDED)})==\S+", (PROJECT / "requirements.txt").read_text(), re.MULTILINE
    )
    # pip takes no range: all versions up to the newest glibc
    names = [
        *(f"manylinux_2_{minor}" for minor in range(_NEWEST_GLIBC, 4, -1)),
        "manylinux2014",
        "manylinux1",
    ]
    platforms = (word for name in names for word in ("--platform", f"{name}_x86_64"))
    pip = ("pip", "--quiet", "--disable-pip-version-check")
    # first, because `download` finds these in the folder
    _call(*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), *_SOURCE_ONLY)
    target = (
        "--only-binary=:all:",
        "--implementation",
        "cp",
        "--python-version",
        python,
        *platforms,
    )
    _call(*pip, "download", *target, "--find-links", str(folder), "--dest", str(folder), *pins)
    for path in (path for name in _UNUSED for path in folder.glob(f"{name}-*.whl")):
        path.unlink()


def _call(module: str, *arguments: str) -> None:
    status = subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode
    if status:
        raise InputError(
            f"python -m {module}: found exit status {status}, expected 0; its messages are above."
        )
