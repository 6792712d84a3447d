"""Rule init_model: the untrained model, iteration 0 of the checkpoints."""

import json

from twoscale.data.shards import TokenMetadata, read_metadata
from twoscale.jobs import command
from twoscale.model.checkpoints import save_untrained


def main(arguments) -> None:
    digest = read_metadata(arguments.metadata, TokenMetadata).digest
    save_untrained(arguments.checkpoint, arguments.config | {"data": digest})


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("metadata", "checkpoint"), config=json.loads))
