"""Rule fetch_release: the tables of a release, each with the SHA-256 of its manifest."""

from twoscale.config import ConfigSlice
from twoscale.jobs import command
from twoscale.report.release import File, fetch


def main(arguments) -> None:
    for (name, facts), path in zip(
        sorted(arguments.config.files.items()), arguments.tables, strict=True
    ):
        fetch(arguments.source, name, File(**facts), path, arguments.download.download)


if __name__ == "__main__":
    parser = command.parser(__doc__, lists=("tables",))
    parser.add_argument("--source", required=True, help="folder or address of the release")
    parser.add_argument(
        "--download",
        type=ConfigSlice.from_json,
        required=True,
        help="section download of the config, as JSON",
    )
    command.run(main, parser)
