"""Compare a finished run with a release (docs/release.md); exit status 1 where they differ.

python scripts/check_release.py docs/demo-release         # results/demo against its release
python scripts/check_release.py https://host/folder --results elsewhere/results
"""

import sys
from pathlib import Path

from twoscale.base import InputError, neutralise
from twoscale.config import DownloadConfig, training_identity
from twoscale.jobs import command
from twoscale.model.checkpoints import differences, read_header
from twoscale.report import check
from twoscale.report.release import Release


def main(arguments) -> None:
    release = Release.open(arguments.release, DownloadConfig())
    run, folder = release.manifest.run, arguments.results / release.manifest.run
    check.check_text(release, folder / "data/tokens.json")
    config = release.runs({})[run]
    checkpoint = folder / f"checkpoints/iteration_{config.train.iterations:06d}.safetensors"
    theirs = training_identity(config)
    ours = read_header(checkpoint).identity
    keys = [name for name, *_ in differences({key: ours.get(key) for key in theirs}, theirs)]
    if keys:
        found = f"other values of {', '.join(keys)}"
        raise InputError(f"{checkpoint}: found {found}, expected those of the release.")
    found, released = check.tables_of_run(folder), check.tables_of_release(release)
    changes = check.differences(release.manifest, check.segments(folder))
    result = check.check(found, released, same_arithmetic=not changes)
    print(neutralise("\n".join(check.lines(result, changes))))
    sys.exit(int(not result.agrees))


if __name__ == "__main__":
    options = command.plain_parser(__doc__)
    options.add_argument("release", help="folder or address of the release")
    options.add_argument("--results", type=Path, default=Path("results"), help="folder of the runs")
    command.run(main, options)
