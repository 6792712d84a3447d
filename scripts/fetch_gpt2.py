"""Rule fetch_gpt2: GPT-2's tokenizer, once, so that later jobs need no network."""

from pathlib import Path

from twoscale import command, files
from twoscale.data import gpt2
from twoscale.config import DownloadConfig


def main(arguments) -> None:
    fetched = gpt2.fetch(DownloadConfig(**arguments.config))
    with files.replacing(arguments.output) as temporary:
        temporary.write_bytes(fetched)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--output", type=Path, required=True, help="gpt2.tiktoken to write")
    command.run(main, parser)
