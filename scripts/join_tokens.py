"""Rule join_tokens: concatenate the ids of all text shards, in order, without near-duplicates of
training text.
"""

import sys

from twoscale.data.shards import TokenShard
from twoscale.data.tokens import join_tokens
from twoscale.jobs import command


def main(arguments) -> None:
    paths = zip(arguments.trains, arguments.vals, arguments.metadata_files, strict=True)
    joined = TokenShard(arguments.train, arguments.val, arguments.metadata)
    config = arguments.config
    shards = [TokenShard(*three) for three in paths]
    lengths = config.held_out_tokens, config.near_duplicate_tokens, config.context_length
    print(join_tokens(shards, joined, *lengths), file=sys.stderr)


if __name__ == "__main__":
    parser = command.parser(
        __doc__, files=("train", "val", "metadata"), lists=("trains", "vals", "metadata_files")
    )
    command.run(main, parser)
