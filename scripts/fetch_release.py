"""Rule fetch_release: the tables of a release, each with the size and the SHA-256 of its manifest."""

from twoscale.config import ConfigSlice
from twoscale.jobs import command
from twoscale.report.release import Release


def main(arguments) -> None:
    release = Release.of(arguments.source, arguments.config.files, arguments.download.download)
    for name, path in zip(release.tables, arguments.tables, strict=True):
        release.fetch(name, path)


if __name__ == "__main__":
    parser = command.parser(__doc__, lists=("tables",))
    parser.add_argument("--source", required=True, help="folder or address of the release")
    parser.add_argument(
        "--download", type=ConfigSlice.from_json, required=True, help="section download of the config, as JSON"
    )
    command.run(main, parser)
