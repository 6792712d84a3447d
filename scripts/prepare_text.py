"""Rule prepare_text: collect documents from data.source into parquet shards."""

from pathlib import Path

from twoscale import command
from twoscale.settings import Data
from twoscale.text import prepare_text


def main(arguments) -> None:
    prepare_text(Data(**arguments.settings["data"]), arguments.output)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--output", type=Path, nargs="+", required=True, help="parquet shards to write")
    command.run(main, parser)
