"""Compare a finished run with a release of it: `make check-demo`, docs/release.md.

    python scripts/check_release.py docs/demo-release               # results/demo against the release of the demo
    python scripts/check_release.py https://host/folder --results elsewhere/results

Prints the numbers that left their tolerance; the exit status is 1 if there are any.
"""

import argparse
import sys
from pathlib import Path

from twoscale.base import neutralise
from twoscale.config import DownloadConfig
from twoscale.jobs import command
from twoscale.model.checkpoints import read_header
from twoscale.report import check
from twoscale.report.release import Release, text_digests


def main(arguments) -> None:
    release = Release.open(arguments.release, DownloadConfig())
    run, folder = release.manifest.run, arguments.results / release.manifest.run
    tokens = folder / "data/tokens.json"
    check.check_text(release.manifest, text_digests(tokens), str(tokens))
    config = release.runs({})[run]
    checkpoint = folder / f"checkpoints/iteration_{config.train.iterations:06d}.safetensors"
    check.check_config(read_header(checkpoint).identity, config, str(checkpoint))
    found, released = check.tables_of_run(folder), check.tables_of_release(release)
    changes = check.differences(release.manifest, check.segments(folder))
    result = check.check(found, released, same_arithmetic=not changes)
    print(neutralise("\n".join(check.lines(result, changes))))
    sys.exit(int(len(result.outside) > 0))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("release", help="folder or address of the release")
    options.add_argument("--results", type=Path, default=Path("results"), help="folder of the runs")
    command.run(main, options)
