"""Rule init_model: the untrained model, step 0 of the checkpoints."""

import json
from pathlib import Path

from twoscale.model import checkpoints
from twoscale import command
from twoscale.config import sections
from twoscale.model.transformer import initialise


def main(arguments) -> None:
    model = sections.Model(**arguments.settings["model"])
    data = json.loads(arguments.sidecar.read_text())["digest"]
    made = initialise(model, arguments.settings["seed"])
    header = checkpoints.Header("weights", 0, 0, arguments.settings | {"data": data}, {})
    checkpoints.save(arguments.checkpoint, made.state_dict(), header)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--sidecar", type=Path, required=True, help="tokens.json, whose digest names the text")
    parser.add_argument("--checkpoint", type=Path, required=True, help="output")
    command.run(main, parser)
