"""Rule init_model: the untrained model, step 0 of the checkpoints."""

import json
from pathlib import Path

from twoscale.model import checkpoints
from twoscale import command
from twoscale import config
from twoscale.model.transformer import initialise


def main(arguments) -> None:
    model = config.ModelConfig(**arguments.config["model"])
    data = json.loads(arguments.metadata.read_text())["digest"]
    made = initialise(model, arguments.config["seed"])
    header = checkpoints.Header("weights", 0, 0, arguments.config | {"data": data}, {})
    checkpoints.save(arguments.checkpoint, made.state_dict(), header)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--metadata", type=Path, required=True, help="tokens.json, whose digest names the text")
    parser.add_argument("--checkpoint", type=Path, required=True, help="output")
    command.run(main, parser)
