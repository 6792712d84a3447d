"""Rule tokenize_text: turn the documents of one text shard into ids, training and held-out ones apart."""

from pathlib import Path

from twoscale import command
from twoscale.data.tokens import TokenShard, load_tokenizer, tokenize_text


def main(arguments) -> None:
    tokenizer = load_tokenizer(arguments.config["tokenizer"], arguments.tokenizer)
    tokenize_text(arguments.text, tokenizer, TokenShard(arguments.train, arguments.val, arguments.metadata))


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--text", type=Path, required=True, help="parquet shard of prepare_text")
    parser.add_argument("--tokenizer", type=Path, help="file of the tokenizer, for gpt2 and bpe")
    parser.add_argument("--train", type=Path, required=True, help="training ids to write")
    parser.add_argument("--val", type=Path, required=True, help="held-out ids to write")
    parser.add_argument("--metadata", type=Path, required=True, help="JSON to write: what the ids mean")
    command.run(main, parser)
