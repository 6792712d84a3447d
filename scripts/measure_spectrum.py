"""Rule measure_spectrum: eigenvalues of the loop steps of one checkpoint at their fixed points, and paths of tokens."""

import torch

from twoscale import command
from twoscale.data.batches import open_held_out
from twoscale.model.checkpoints import open_checkpoint
from twoscale.studies.spectrum import measure as spectrum


def main(arguments) -> None:
    torch.set_num_threads(1)  # Snakemake runs checkpoints side by side
    config = arguments.config
    checkpoint = open_checkpoint(arguments.checkpoint, config, config.spectrum.dtype)
    held_out, exact = (
        open_held_out(arguments.val, arguments.metadata, config.model, count)
        for count in (config.spectrum_sequences, config.exact_sequences)
    )
    text = spectrum.open_text(arguments.train, arguments.metadata, config.model.vocab_size)
    loops = spectrum.Loops(checkpoint.model, config.spectrum, config.loops)
    spectrum.measure(checkpoint, held_out, set(exact.sequences), text, loops, arguments.spectrum)


if __name__ == "__main__":
    files = ("checkpoint", "val", "metadata", "spectrum")
    command.run(main, command.parser(__doc__, files=files, optional=("train",)))
