"""Keep of a snapshot the figures of the paper and of training and the tables of claims, without the
supplement.

python scripts/keep_release.py results/snapshot docs/demo-release
"""

import argparse
import json
import shutil
from pathlib import Path

from twoscale import tables
from twoscale.base import InputError
from twoscale.figures.catalogue import figures, snapshot_figures
from twoscale.jobs import command
from twoscale.report.release import MANIFEST, write_snapshot


def main(arguments) -> None:
    snapshot, folder = arguments.snapshot, arguments.folder
    manifest = snapshot / MANIFEST
    if not manifest.is_file():
        raise InputError(
            f"{manifest}: no such file, expected the manifest of `snakemake snapshot`."
        )
    facts = json.loads(manifest.read_text(encoding="utf-8"))
    if facts["modified"] is not False:
        raise InputError(
            f"{manifest}: found modified: {json.dumps(facts['modified'])}, expected false; commit"
            f" first."
        )
    if folder.exists() and not (folder / MANIFEST).is_file():
        raise InputError(
            f"{folder}: found a folder without {MANIFEST}, expected an earlier release or none."
        )
    shutil.rmtree(folder, ignore_errors=True)
    run, drawn = facts["run"], snapshot_figures(figures())
    files = {f"tables/{table}.parquet" for table in ("claims", *tables.CLAIM_TABLES.values())}
    files |= {file for figure in drawn for file in figure.inputs.values()}
    names = {f"{figure.name}.svg" for figure in drawn} | {f"{run}/{file}" for file in files}
    write_snapshot(folder, [snapshot / name for name in names], snapshot, facts)


if __name__ == "__main__":
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("snapshot", type=Path, help="folder of the snapshot")
    options.add_argument(
        "folder", type=Path, help="folder of the release, which takes the place of an earlier one"
    )
    command.run(main, options)
