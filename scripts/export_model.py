"""Rule export_model: a trained model as a folder that the transformers library loads."""

import json

from twoscale import tables
from twoscale.config import PROJECT
from twoscale.data.tokenizer import load_tokenizer
from twoscale.export import citation, model_card
from twoscale.export.folder import write_release
from twoscale.jobs import command, environment
from twoscale.model.checkpoints import CHECKPOINT


def main(arguments) -> None:
    config = arguments.config
    tokenizer = load_tokenizer(config.tokenizer.name, arguments.tokenizer)
    card = model_card.card(
        config,
        [int(CHECKPOINT.fullmatch(path.name)[1]) for path in arguments.checkpoints],
        json.loads(arguments.metadata.read_text(encoding="utf-8")),
        tables.read("training", arguments.training),
        [entry for segment in arguments.segments for entry in environment.read(segment)],
        citation.read(PROJECT),
        **{name: tables.read(name, path) for name in ("claims", "seeds") if (path := getattr(arguments, name))},
    )
    texts = {"README.md": card, "LICENSE": (PROJECT / "LICENSE").read_text(encoding="utf-8")}
    write_release(arguments.export, arguments.checkpoints, tokenizer, arguments.tokenizer, config, texts)


if __name__ == "__main__":
    files, optional = ("metadata", "training", "export"), ("tokenizer", "claims", "seeds")
    command.run(main, command.parser(__doc__, files, lists=("checkpoints", "segments"), optional=optional))
