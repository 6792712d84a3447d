"""The results of a session in one archive, at any moment."""

import json
import time
import zipfile
import zlib
from collections.abc import Iterator
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from twoscale import tables
from twoscale.base import InputError, replacing
from twoscale.config import PROJECT, user_values
from twoscale.dynamics import aggregate
from twoscale.gpu import pack
from twoscale.gpu.session import Session
from twoscale.jobs import machine
from twoscale.report import release
from twoscale.workflow.runs import RESULTS

MOST_BYTES = 15_000_000
OVERHEAD = 1000  # bytes of a file's name in the archive and in the manifest, at most
PER_TOKEN = {"loop_metrics": "trajectories", "drift": "drift"}  # table -> folder of what it is aggregated from


def collect(session: Session) -> Path:
    """Write the present results into `{run}.zip` in the folder of the pack, at most `MOST_BYTES`, and return its path.

    Files have their paths below `results/`. The manifest has the keys of a snapshot (`twoscale.report.release`),
    so the archive of a finished run is a release, and `session`, `hours` and `left_out`: files for which there was no
    space. Tables with a row per token are left out. Until their statistics are in `{run}/tables`, those of the
    checkpoints so far are in `{run}/gpu`. Raises InputError before the first start.
    """
    if not session.state:
        raise InputError(f"{session.folder}: found no session; start one with `run`.")
    _aggregate_so_far(session)
    target = session.pack / f"{session.run}.zip"
    digests, left_out, used = {}, [], 0
    with replacing(target) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in _results(session):
            content, name = path.read_bytes(), str(path.relative_to(RESULTS))
            size = len(zlib.compress(content)) + OVERHEAD
            if used + size > MOST_BYTES - OVERHEAD**2:  # the last for the manifest
                left_out.append(name)
                continue
            used += size
            archive.writestr(name, content)
            digests[name] = {"bytes": len(content), "sha256": sha256(content).hexdigest()}
        facts = _facts(session) | {"left_out": left_out, "files": digests}
        archive.writestr(release.MANIFEST, json.dumps(facts, indent=1, ensure_ascii=False))
    return target


def _results(session: Session) -> Iterator[Path]:
    """The files to collect, the most important first. Figures and claims of an earlier run are none of them."""
    results, run = Path(RESULTS), Path(RESULTS, session.run)
    shown = chain(results.glob("claims.md"), results.glob("*.pdf"), results.glob("*.svg"))
    groups = [
        (path for path in session.folder.iterdir() if path.stat().st_size),
        (path for path in shown if path.stat().st_mtime >= session.state["started"]),
        *(run.glob(pattern) for pattern in ("tables/*.parquet", "training/*.*", "data/tokens.json")),
        *(run.glob(pattern) for pattern in ("benchmarks/*.tsv", "logs/*.log")),
    ]
    return chain.from_iterable(map(sorted, groups))


def _aggregate_so_far(session: Session) -> None:
    """Statistics over tokens of the checkpoints that are analysed, in the folder of the session until all are."""
    run = Path(RESULTS, session.run)
    for table, folder in PER_TOKEN.items():
        own, files = session.folder / f"{table}.parquet", sorted((run / folder).glob("iteration_*.parquet"))
        if (run / "tables" / own.name).exists():
            own.unlink(missing_ok=True)
        elif files:
            tables.write(table, getattr(aggregate, table)(files, session.run), own)


def _facts(session: Session) -> dict[str, Any]:
    run, state = Path(RESULTS, session.run), session.state
    packed = json.loads((session.pack / pack.MANIFEST).read_text(encoding="utf-8"))
    logs = sorted(path for path in run.glob("training/iteration_*.parquet") if ".loops" not in path.name)
    return {
        "run": session.run,
        "commit": packed["commit"],
        "modified": packed["modified"] if packed["code"] == pack.code_digest(PROJECT) else True,
        "text": release.text_digests(tokens) if (tokens := run / "data/tokens.json").exists() else {},
        "config": user_values(session.runs.config),
        "versions": release.versions(),
        "machine": machine.description(),
        "training": release.training_cost(aggregate.training(logs), logs) if logs else {},
        "jobs": release.job_costs(run.glob("benchmarks/*.tsv")),
        "session": state,
        "hours": round((time.time() - state["started"]) / 3600, 3),
    }
