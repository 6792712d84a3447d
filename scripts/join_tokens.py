"""Rule join_tokens: join the ids of all text shards, in order, to a training and a held-out token shard."""

from pathlib import Path

from twoscale import command
from twoscale.data.tokens import TokenShard, join_tokens


def main(arguments) -> None:
    shards = [TokenShard(*paths) for paths in zip(arguments.trains, arguments.vals, arguments.metadata_files, strict=True)]
    joined = TokenShard(arguments.train, arguments.val, arguments.metadata)
    join_tokens(shards, joined, arguments.config["held_out"], arguments.config["block"])


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--trains", type=Path, nargs="+", required=True, help="training ids of each text shard")
    parser.add_argument("--vals", type=Path, nargs="+", required=True, help="held-out ids of each text shard")
    parser.add_argument("--metadata_files", type=Path, nargs="+", required=True, help="what the ids of each shard mean")
    parser.add_argument("--train", type=Path, required=True, help="token shard to write")
    parser.add_argument("--val", type=Path, required=True, help="held-out token shard to write")
    parser.add_argument("--metadata", type=Path, required=True, help="tokens.json to write: what the two shards hold")
    command.run(main, parser)
