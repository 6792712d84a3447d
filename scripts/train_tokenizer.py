"""Rule train_tokenizer: train the run's own BPE on its training documents."""

from pathlib import Path

from twoscale import command, files
from twoscale.config import TokenizerConfig
from twoscale.data.text import training_texts
from twoscale.data.tokens import train_tokenizer


def main(arguments) -> None:
    trained = train_tokenizer(training_texts(arguments.text), TokenizerConfig(**arguments.config["tokens"]).entries)
    with files.replacing(arguments.output) as temporary:
        temporary.write_text(trained, encoding="utf-8")


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="parquet shards of prepare_text")
    parser.add_argument("--output", type=Path, required=True, help="tokenizer.json to write")
    command.run(main, parser)
