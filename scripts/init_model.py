"""Rule init_model: the untrained model, iteration 0 of the checkpoints."""

import json

from twoscale import command
from twoscale.config import ConfigSlice
from twoscale.model import checkpoints, registry


def main(arguments) -> None:
    identity, config = arguments.config, ConfigSlice(arguments.config)
    digest = json.loads(arguments.metadata.read_text())["digest"]
    model = registry.architecture(config.model.architecture).initialise(config.model, config.seed)
    header = checkpoints.Header("weights", 0, 0, identity | {"data": digest}, {})
    checkpoints.save(arguments.checkpoint, model.state_dict(), header)


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("metadata", "checkpoint"), config=json.loads))
