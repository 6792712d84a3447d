"""Results of expensive jobs under a second name, from which a rerun restores them.

Snakemake removes the outputs of a job before it runs the job again. So a job that has succeeded
links its outputs (hard links) into a folder under `results/{run}/.result_cache/`, with a manifest:
the digests of all that the result depends on, and of the outputs. A job that finds a manifest of
the same code, config, environment and inputs, and intact files, restores them. Only the latest
result of each job is kept, and the folder may be removed at any time.

An optimizer state between two segments of training is temporary, so it is not kept. Its segment is
restored only if later segments can be restored up to one whose optimizer state is kept; the
temporary file is then empty.

Snakemake writes the seconds of a restored job over those of its computation, which the workflow
saves as BENCHMARK before the job and puts back after it (`twoscale.workflow.snakefile`).
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from twoscale.base import canonical_json, first_line, json_digest, link, replacing, sha256
from twoscale.jobs import machine

MANIFEST = "manifest.json"
BENCHMARK = "benchmark.tsv"  # only of a restored result; empty if its seconds are unknown


@dataclass(frozen=True)
class Job:
    """What a job keeps, as the rules describe it with ``--result-cache``."""

    folder: Path  # where its result is kept
    version: str  # digest of its code and config
    inputs: Sequence[str]
    outputs: Sequence[str]
    temporary: Sequence[str]  # outputs that are removed once the next job is done
    later: Sequence[Path]  # folders of the jobs that depend on the temporary outputs, in order
    device: str = "cpu"

    @classmethod
    def from_json(cls, text: str) -> Self:
        values = json.loads(text)
        return cls(
            **values
            | {"folder": Path(values["folder"]), "later": [Path(path) for path in values["later"]]}
        )

    def within(self, environment: Mapping[str, Any]) -> Self:
        """The same job with a version that also depends on an environment, which may change the
        bits of its result.
        """
        return replace(self, version=json_digest([self.version, environment]))


@dataclass(frozen=True)
class Result:
    """A manifest: digests (SHA-256) of inputs and outputs by path, and the outputs that were
    dropped.
    """

    version: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    dropped: list[str]


def run(job: Job, compute: Callable[[], None]) -> None:
    """Restore the result of `job`, or `compute` and keep it.

    All processes of a job on one node may call this: they decide alike, and the main one restores
    and keeps. Several nodes may not see the same files at a time, so there nothing is restored.
    """
    launch = machine.launch()
    inputs = _digests(job.inputs)
    result = find(job, inputs) if inputs is not None and launch.nodes == 1 else None
    if result is None:
        compute()
        if inputs is not None and launch.rank == 0:
            keep(job, inputs)
    elif launch.rank == 0:
        restore(job, result)


def find(job: Job, inputs: dict[str, str]) -> Result | None:
    """The kept result of `job` on inputs with these digests, if it is complete and intact."""
    result = _intact(job.folder)
    if result is None or (result.version, result.inputs) != (job.version, inputs):
        return None
    missing = {*job.outputs, *job.temporary} - result.outputs.keys()
    if not missing:
        return result
    # a temporary output may be missing if later results continue this one, one after the other, up
    # to one that has its
    known = result.inputs | result.outputs  # digests by path
    for folder in job.later if missing <= set(job.temporary) else ():
        following = _intact(folder)
        if (
            following is None
            or following.version != result.version
            or not following.inputs.items() <= known.items()
        ):
            return None
        if not following.dropped:
            return result
        known |= following.outputs
    return None


def restore(job: Job, result: Result) -> None:
    """Link the kept files to the outputs, each in one step; temporary outputs that were not kept
    become empty files.
    """
    for path in (*job.outputs, *job.temporary):
        if path not in result.outputs:
            with replacing(path):
                pass
        else:
            kept = job.folder / result.outputs[path]
            try:
                link(kept, path)
            except (
                OSError
            ):  # no hard links on this file system, too many, or a file of another user
                with replacing(path) as temporary:
                    shutil.copyfile(kept, temporary)
        # a link has the time of the kept file, which may be before that of the inputs; Snakemake
        # would run the job again
        os.utime(path)
    (job.folder / BENCHMARK).touch()
    print("restored the cached result; to compute it again, force the job", file=sys.stderr)


def keep(job: Job, inputs: dict[str, str]) -> None:
    """Link the outputs into the job's folder and remove what was kept before.

    A manifest names files by their digests and is replaced in one step, so a kill leaves the old or
    the new result. A file system without hard links keeps nothing: copies would double the space on
    disk.
    """
    try:
        outputs = {path: sha256(path) for path in job.outputs}
        for path, digest in outputs.items():
            link(path, job.folder / digest)
        result = Result(job.version, inputs, outputs, list(job.temporary))
        with replacing(job.folder / MANIFEST) as temporary:
            temporary.write_text(canonical_json(vars(result)), encoding="utf-8")
        for file in job.folder.iterdir():
            if file.name not in {MANIFEST, *outputs.values()}:
                file.unlink(missing_ok=True)
    except OSError as error:
        print(f"the result is not cached: {first_line(error)}", file=sys.stderr)


def _intact(folder: Path) -> Result | None:
    """The result in a folder, if its files have their digests: a hard link changes with a file
    overwritten in place.
    """
    try:
        result = Result(**json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
        kept = _digests([folder / digest for digest in result.outputs.values()])
    except (OSError, ValueError, TypeError, AttributeError):  # none, or one of another version
        return None
    is_intact = kept is not None and all(Path(path).name == digest for path, digest in kept.items())
    return result if is_intact else None


def _digests(paths: Sequence[str | Path]) -> dict[str, str] | None:
    """Digest of each file; None if one cannot be read."""
    try:
        return {str(path): sha256(path) for path in paths}
    except OSError:
        return None
