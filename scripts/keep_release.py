"""Keep the figures of the paper, that of training and the tables of claims of a snapshot, for docs/demo-release.

    python scripts/keep_release.py results/snapshot docs/demo-release

Figures and tables of the supplement, which a snapshot has where they were computed, are left out, and so is claims.md,
which `snakemake --config release=…` writes of the tables.
"""

import argparse
import json
from pathlib import Path

from twoscale import tables
from twoscale.base import InputError
from twoscale.figures.catalogue import figures, snapshot_figures
from twoscale.jobs import command
from twoscale.report import release

MOST_BYTES = 4_000_000


def main(arguments) -> None:
    manifest = arguments.snapshot / release.MANIFEST
    if not manifest.is_file():
        raise InputError(f"{manifest}: no such file, expected the manifest of `snakemake snapshot`.")
    run = json.loads(manifest.read_text(encoding="utf-8"))["run"]
    drawn = snapshot_figures(figures())
    files = {f"{run}/{file}" for figure in drawn for file in figure.inputs.values()}
    judged = {f"{run}/tables/{table}.parquet" for table in ("claims", *tables.CLAIM_TABLES.values())}
    names = {f"{figure.name}.svg" for figure in drawn} | files | judged
    release.excerpt(arguments.snapshot, arguments.folder, sorted(names), MOST_BYTES)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("snapshot", type=Path, help="folder of the snapshot")
    options.add_argument(
        "folder", type=Path, help="folder of the release; files that an earlier manifest lists are replaced"
    )
    command.run(main, options)
