"""Rule fetch_release: the tables of a release, each with the SHA-256 of its manifest."""

from twoscale.jobs import command
from twoscale.report.release import File, fetch


def main(arguments) -> None:
    for (name, facts), path in zip(
        sorted(arguments.config.files.items()), arguments.tables, strict=True
    ):
        file = File(**facts) if facts else None  # none of an earlier release
        fetch(arguments.source, name, file, path, arguments.download.download)


if __name__ == "__main__":
    parser = command.parser(__doc__, lists=("tables",), download=True)
    parser.add_argument("--source", required=True, help="folder or address of the release")
    command.run(main, parser)
