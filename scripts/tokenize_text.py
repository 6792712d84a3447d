"""Rule tokenize_text: write the documents of a text shard as ids, training and held-out documents
in separate files.
"""

from twoscale.data.shards import TokenShard
from twoscale.data.tokenizer import load_tokenizer
from twoscale.data.tokens import tokenize_text
from twoscale.jobs import command


def main(arguments) -> None:
    tokenizer = load_tokenizer(arguments.config.tokenizer, arguments.tokenizer)
    tokenize_text(
        arguments.text, tokenizer, TokenShard(arguments.train, arguments.val, arguments.metadata)
    )


if __name__ == "__main__":
    files = ("text", "train", "val", "metadata")
    command.run(main, command.parser(__doc__, files, optional=("tokenizer",)))
