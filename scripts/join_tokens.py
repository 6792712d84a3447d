"""Rule join_tokens: concatenate the ids of all text shards, in order."""

from twoscale import command
from twoscale.data.shards import TokenShard, join_tokens


def main(arguments) -> None:
    paths = zip(arguments.trains, arguments.vals, arguments.metadata_files, strict=True)
    joined = TokenShard(arguments.train, arguments.val, arguments.metadata)
    config = arguments.config
    join_tokens([TokenShard(*three) for three in paths], joined, config.held_out_tokens, config.context_length)


if __name__ == "__main__":
    parser = command.parser(__doc__, files=("train", "val", "metadata"), lists=("trains", "vals", "metadata_files"))
    command.run(main, parser)
