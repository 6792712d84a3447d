"""Rule prepare_text: collect documents from data.source and write them as text shards; resumes a
download.
"""

from functools import partial
from pathlib import Path

from twoscale.config import ConfigSlice, TextQuota
from twoscale.data.ingestion import count_characters, prepare_text
from twoscale.data.tokenizer import count_tokens, load_gpt2
from twoscale.jobs import command


def main(arguments) -> None:
    quota = TextQuota(**arguments.config.quota)
    measure = (
        partial(count_tokens, load_gpt2(arguments.tokenizer))
        if quota.unit == "tokens"
        else count_characters
    )
    prepare_text(
        arguments.config.data,
        quota,
        arguments.text,
        arguments.parts,
        arguments.download.download,
        measure,
    )


if __name__ == "__main__":
    parser = command.parser(__doc__, lists=("text",), optional=("tokenizer",))
    parser.add_argument(
        "--download",
        type=ConfigSlice.from_json,
        required=True,
        help="section download of the config, as JSON",
    )
    parser.add_argument(
        "--parts", type=Path, required=True, help="folder of the parts of the download"
    )
    command.run(main, parser)
