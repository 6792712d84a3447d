"""Rule init_model: the untrained model, iteration 0 of the checkpoints."""

import json

from twoscale.data.shards import read_digest
from twoscale.jobs import command
from twoscale.model.checkpoints import save_untrained


def main(arguments) -> None:
    save_untrained(arguments.checkpoint, arguments.config | {"data": read_digest(arguments.metadata)})


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("metadata", "checkpoint"), config=json.loads))
