"""Rule train_tokenizer: train a BPE tokenizer on the training documents."""

from twoscale.base import replacing
from twoscale.data.text import training_texts
from twoscale.data.tokenizer import train_bpe
from twoscale.jobs import command


def main(arguments) -> None:
    tokenizer = train_bpe(training_texts(arguments.text), arguments.config.tokenizer.vocab_size)
    with replacing(arguments.tokenizer) as temporary:
        temporary.write_text(tokenizer, encoding="utf-8")


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("tokenizer",), lists=("text",)))
