"""Rule prepare_text: collect documents from data.source as text shards; resumes a download."""

from functools import partial
from pathlib import Path

from twoscale.config import TextQuota
from twoscale.data.ingestion import count_characters, prepare_text
from twoscale.data.tokenizer import count_tokens, load_gpt2
from twoscale.jobs import command


def main(arguments) -> None:
    quota = TextQuota(**arguments.config.quota)
    measure = count_characters
    if quota.unit == "tokens":
        measure = partial(count_tokens, load_gpt2(arguments.tokenizer))
    prepare_text(
        arguments.config.data,
        quota,
        arguments.text,
        arguments.parts,
        arguments.download.download,
        measure,
    )


if __name__ == "__main__":
    parser = command.parser(__doc__, lists=("text",), optional=("tokenizer",), download=True)
    parser.add_argument(
        "--parts", type=Path, required=True, help="folder of the parts of the download"
    )
    command.run(main, parser)
