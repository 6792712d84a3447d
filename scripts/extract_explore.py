"""Rule extract_explore: states, predictions and exits of the tokens that results/explore.html shows."""

import pandas as pd
import torch

from twoscale import command, tables
from twoscale.data.batches import open_held_out
from twoscale.data.tokenizer import load_tokenizer
from twoscale.exits.probe import open_probe
from twoscale.model.checkpoints import open_checkpoint
from twoscale.studies.explore import measure as explore


def main(arguments) -> None:
    torch.set_num_threads(1)
    config, place = arguments.config, arguments.config.explore.sequence
    held_out = open_held_out(arguments.val, arguments.metadata, config.model, config.trajectory_sequences)
    sequence = explore.beginning(held_out[place : place + 1], config.explore.tokens)
    tokenizer = load_tokenizer(config.tokenizer, arguments.tokenizer)

    def opened(dtype):
        return open_checkpoint(arguments.checkpoint, config, dtype)

    # one model at a time: the geometry in the dtype of trajectories, the exits in that of the exit tables
    loops = config.exits.max_loops
    states, components = explore.trace_states(opened(config.trajectories.dtype), sequence, loops, tokenizer)
    checkpoint = opened(config.exits.dtype)
    probe = open_probe(arguments.probe, checkpoint)
    exits = pd.DataFrame(explore.exit_rows(checkpoint, sequence, config.exits, probe))
    tokens = pd.DataFrame(explore.token_rows(sequence, tokenizer))
    for name, frame in {"tokens": tokens, "states": states, "components": components, "exits": exits}.items():
        tables.write(f"explore_{name}", frame.assign(run=config.run), getattr(arguments, name))


if __name__ == "__main__":
    outputs = ("tokens", "states", "components", "exits")
    files = ("checkpoint", "val", "metadata", *outputs)
    command.run(main, command.parser(__doc__, files, optional=("tokenizer", "probe")))
