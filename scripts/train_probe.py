"""Rule train_probe: fit the probe of the criterion `probe` on states of the last checkpoint, from training text."""

import torch

from twoscale.data.batches import open_held_out
from twoscale.exits.probe import save_probe
from twoscale.exits.probe_fit import fit_probe
from twoscale.jobs import command
from twoscale.model.checkpoints import open_checkpoint


def main(arguments) -> None:
    config = arguments.config
    torch.set_num_threads(1)  # small tensors gain little from a second thread, and sums keep their order
    checkpoint = open_checkpoint(arguments.checkpoint, config, config.probe.dtype)
    text = open_held_out(arguments.train, arguments.metadata, config.model, config.sequences)
    save_probe(arguments.probe, fit_probe(checkpoint, text, config), checkpoint, config)


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("checkpoint", "train", "metadata", "probe")))
