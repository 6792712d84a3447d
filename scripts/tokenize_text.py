"""Rule tokenize_text: turn documents into a training and a held-out token shard."""

from pathlib import Path

from twoscale import command
from twoscale.settings import Tokens
from twoscale.tokens import load_tokenizer, tokenize_text


def main(arguments) -> None:
    chosen = Tokens(**arguments.settings["tokens"])
    tokenizer = load_tokenizer(chosen.tokenizer, arguments.tokenizer)
    outputs = (arguments.train, arguments.val, arguments.sidecar)
    tokenize_text(arguments.text, tokenizer, *outputs, chosen.held_out, arguments.settings["block"])


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="parquet shards of prepare_text")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json, for tokens.tokenizer: bpe")
    parser.add_argument("--train", type=Path, required=True, help="token shard to write")
    parser.add_argument("--val", type=Path, required=True, help="held-out token shard to write")
    parser.add_argument("--sidecar", type=Path, required=True, help="tokens.json to write: what the two shards hold")
    command.run(main, parser)
