"""Keep of a snapshot the figures of the paper and of training and the tables of claims.

python scripts/keep_release.py results/snapshot docs/demo-release
"""

from pathlib import Path

from twoscale.jobs import command
from twoscale.report.release import keep_snapshot

if __name__ == "__main__":
    options = command.plain_parser(__doc__)
    options.add_argument("snapshot", type=Path, help="folder of the snapshot")
    options.add_argument(
        "folder", type=Path, help="folder of the release, which takes the place of an earlier one"
    )
    command.run(lambda given: keep_snapshot(given.snapshot, given.folder), options)
