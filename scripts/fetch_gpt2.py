"""Rule fetch_gpt2: download GPT-2's tokenizer once, so that later jobs need no network."""

from twoscale.base import replacing
from twoscale.data.tokenizer import fetch_gpt2
from twoscale.jobs import command


def main(arguments) -> None:
    ranks = fetch_gpt2()
    with replacing(arguments.ranks) as temporary:
        temporary.write_bytes(ranks)


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("ranks",)))
