"""Rule try_criterion: a criterion from a user's file on a few tokens, before a job that measures it beside others."""

import torch

from twoscale import command
from twoscale.data.batches import open_held_out
from twoscale.exits.benchmark import operating_points
from twoscale.exits.trial import TRIAL_TOKENS, try_criteria
from twoscale.files import replacing
from twoscale.model.checkpoints import open_checkpoint


def main(arguments) -> None:
    torch.set_num_threads(1)
    config = arguments.config
    checkpoint = open_checkpoint(arguments.checkpoint, config, config.exits.dtype)
    text = open_held_out(arguments.val, arguments.metadata, config.model, 1)
    try_criteria(checkpoint, text.inputs[0], config.exits)
    points = [f"{name} at {threshold:g}" for name, threshold in operating_points(config.exits)]
    with replacing(arguments.tried) as temporary:
        temporary.write_text(f"{', '.join(points)}: the same exits of {TRIAL_TOKENS} tokens in both engines\n")


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("checkpoint", "val", "metadata", "tried")))
